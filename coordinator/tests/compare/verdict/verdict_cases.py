"""Evidence for tests of the verdict."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosstrain.compare.freerun.flips import Flip
from crosstrain.compare.freerun.traces import LossTrace
from crosstrain.compare.verdict import (
    CauseEvidence,
    CertificateEvidence,
    CheckEvidence,
    EngineEvidence,
    EnvelopeEvidence,
    Evidence,
)

STEPS = np.arange(100)
CURVE = 2.3 * np.exp(-STEPS / 40)


def trace(apart: float = 0.0, seed: int = 1, start: int = 0, rates: bool = False) -> LossTrace:
    """A run whose losses are relatively ``apart`` from CURVE, from ``start`` on."""
    random = np.random.default_rng(seed)
    factor = 1 + apart * random.choice([-1, 1], 100) * (1 + random.random(100)) * (start <= STEPS)
    return LossTrace(STEPS, CURVE * factor, np.where(STEPS < 50, 0.1, 0.01) if rates else None)


def check(kind: str = "forward", subject: str = "conv1", ratio: float = 0.4, **more: Any) -> CheckEvidence:
    """One check."""
    return CheckEvidence(**{"kind": kind, "subject": subject, "case": "start", "step": 0, "ratio": ratio, **more})


def certificate(*checks: CheckEvidence, case: str = "start", **more: Any) -> CertificateEvidence:
    """A certificate of some checks, by default one that holds."""
    return CertificateEvidence(case, (0, 1, 2), 16, checks or (check(), check("backward", "pool1", 0.1)), **more)


FAILED = check(
    "backward", "pool1", 2e4, coordinates=(0, 1, 2, 3), found=1.0, expected=0.5, bound=1e-7, count=3, size=64,
    layer="pool1")  # fmt: skip
BROKEN = certificate(check(), FAILED, check("gradient", "conv1.weight", 0.9))
TIES = CauseEvidence(
    ("pool.ties_all",), "gradient at ties", "Max-pooling sends the gradient to every tied maximum.", "start", 0, 0.3,
    where=("backward pool1",), found_in="Theano on a CPU", restore="Choose the canonical semantics.")  # fmt: skip


def engine(name: str = "torch", version: str = "2.13.0", **more: Any) -> EngineEvidence:
    """An engine with a certificate that holds and a free run near the reference's."""
    values: dict[str, Any] = {"certificates": (certificate(),), "trace": trace(1e-8)}
    return EngineEvidence(name, version, **{**values, **more})


REFERENCE = engine("lasagne", "0.1", trace=trace())


def envelope(apart: float = 1e-2, runs: int = 4) -> EnvelopeEvidence:
    """Perturbed runs of the reference engine."""
    return EnvelopeEvidence(
        REFERENCE.label, trace(), tuple(trace(apart, seed=50 + number) for number in range(runs))
    )


def flip(step: int = 3, ratio: float = 0.2) -> Flip:
    """A flip of one pooling window."""
    return Flip(step, "pool2", 1, 200_704, (0, 1, 2, 3), 1e-7, 2e-8, 5e-7, ratio)


def evidence(*engines: EngineEvidence, **more: Any) -> Evidence:
    """A training job of the reference and further engines."""
    values: dict[str, Any] = {
        "job_id": "job-1", "job_name": "digits", "model": "cnn2", "created": "2026-01-02T03:04:05Z",
        "semantics": "canonical", "precision": "float32", "task": "train", "reference": REFERENCE.label,
        "engines": (REFERENCE, *engines),
    }  # fmt: skip
    return Evidence(**{**values, **more})


def row(document: dict[str, Any], label: str = "torch@2.13.0") -> dict[str, Any]:
    """An engine's row."""
    return next(item for item in document["engines"] if item["label"] == label)
