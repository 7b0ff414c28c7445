"""Comparing seven long runs: all pairs, each against the reference, envelope, rank test, repeats, the document.

The losses are made up: they share a curve, and part a while after the start as free runs do. Everything
that a verdict computes from losses is timed together, with the parts beside it.

    python benchmarks/compare_runs.py [--steps 150000] [--runs 7] [--perturbed 4] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import combinations

import numpy as np

from crosstrain.compare.freerun.envelope import envelope, outside_share
from crosstrain.compare.freerun.rank import rank_test
from crosstrain.compare.freerun.traces import LossTrace, difference
from crosstrain.compare.verdict import (
    CertificateEvidence,
    CheckEvidence,
    EngineEvidence,
    EnvelopeEvidence,
    Evidence,
    judge,
    verdict_json,
)

#: Seconds that the whole comparison may take.
TARGET = 2.0


def trace(steps: int, seed: int) -> LossTrace:
    """A falling loss with the batches' noise; runs of different seeds part by rounding, then by chance."""
    number = np.arange(steps)
    curve = 2.3 * np.exp(-number / (steps / 5)) + 0.05
    batches = np.random.default_rng(0).standard_normal(steps) * 0.05
    apart = np.random.default_rng(seed).standard_normal(steps) * np.exp(np.minimum(number / 20.0 - 18.4, -4.6))
    rates = np.where(number < steps // 2, 0.1, 0.01)
    return LossTrace(number, np.asarray(curve * (1 + batches + apart), np.float32).astype(np.float64), rates)


def evidence(runs: list[LossTrace], perturbed: list[LossTrace], repeat: LossTrace) -> Evidence:
    """A job of one engine per run, each with a certificate that holds."""
    checks = tuple(CheckEvidence("forward", f"layer{index}", "start", 0, 0.4) for index in range(100))
    engines = tuple(
        EngineEvidence(
            f"engine{index}", "1", certificates=(CertificateEvidence("start", (0,), 16, checks),), trace=run,
            repeats=(repeat,) if index == 1 else ())
        for index, run in enumerate(runs)
    )  # fmt: skip
    spread = EnvelopeEvidence("engine1@1", runs[1], tuple(perturbed), (repeat,))
    return Evidence(
        "job", "benchmark", "cnn2", "2000-01-01T00:00:00Z", "canonical", "float32", "train", engines, "engine0@1",
        spread)  # fmt: skip


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    """Prints minimum, median and maximum of every part; fails if the whole is slower than the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--perturbed", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    runs = [trace(arguments.steps, seed + 1) for seed in range(arguments.runs)]
    perturbed = [trace(arguments.steps, seed + 100) for seed in range(arguments.perturbed)]
    given = evidence(runs, perturbed, trace(arguments.steps, 200))
    band = envelope(runs[1], perturbed)
    parts: dict[str, Callable[[], object]] = {
        "all pairs": lambda: [difference(a, b) for a, b in combinations(runs, 2)],
        "envelope": lambda: envelope(runs[1], perturbed),
        "share outside": lambda: [outside_share(run, runs[0], band) for run in runs[1:]],
        "rank tests": lambda: [rank_test(run, runs[1], perturbed) for run in runs[2:]],
        "verdict": lambda: judge(given),
        "verdict with its JSON text": lambda: verdict_json(judge(given)),
    }
    print(f"{arguments.runs} runs of {arguments.steps:,} steps, {arguments.perturbed} perturbed runs; seconds")
    for name, work in parts.items():
        taken = [seconds(work) for _ in range(arguments.rounds)]
        print(f"{name:28} min {min(taken):.3f}  median {statistics.median(taken):.3f}  max {max(taken):.3f}")
    median = statistics.median(taken)
    print(f"target {TARGET} s: {'met' if median <= TARGET else 'MISSED'}")
    return 0 if median <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
