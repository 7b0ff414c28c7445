"""What a verdict is made from. Everything here is plain data; nothing reads files or databases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from crosstrain.compare.freerun.flips import Flip
from crosstrain.compare.freerun.traces import LossTrace


@dataclass(frozen=True)
class CheckEvidence:
    """One local check of a recorded step.

    ``kind`` is the certificate's ("forward", "loss gradient", ...), ``subject`` the layer, parameter or
    tensor; step -1 is the evaluation. ``ratio`` is the largest error over its bound: at most 1 holds, 0 is
    exact, infinite or NaN was not comparable. ``coordinates``, ``found``, ``expected`` and ``bound`` belong
    to the worst element; ``count`` of ``size`` elements are outside. ``layer`` is the layer whose operation gave
    the value; empty for the rest.
    """

    kind: str
    subject: str
    case: str
    step: int
    ratio: float
    coordinates: tuple[int, ...] | None = None
    found: float | None = None
    expected: float | None = None
    bound: float | None = None
    count: int = 0
    size: int = 0
    note: str = ""
    layer: str = ""

    @property
    def holds(self) -> bool:
        """Whether the error is within the bound; NaN is not."""
        return self.ratio <= 1.0


@dataclass(frozen=True)
class CertificateEvidence:
    """The checks of one case in the order of computation, the evaluation last; ``steps`` are those recorded."""

    case: str
    steps: tuple[int, ...]
    probe_batch_size: int
    checks: tuple[CheckEvidence, ...]
    ties: int = 0
    zeros: int = 0

    @property
    def failed(self) -> tuple[CheckEvidence, ...]:
        """The checks that do not hold, in order."""
        return tuple(check for check in self.checks if not check.holds)

    @property
    def identical(self) -> bool:
        """Whether every check was exact."""
        return bool(self.checks) and all(check.ratio == 0 for check in self.checks)


@dataclass(frozen=True)
class Worst:
    """The element with the largest error."""

    coordinates: tuple[int, ...]
    found: float
    expected: float
    bound: float


@dataclass(frozen=True)
class CauseEvidence:
    """What explains failed checks: one convention, two together, or nothing that is known.

    ``ratio`` is the error over the bound under the alternative; ``where`` lists the places ("backward pool1").
    """

    ids: tuple[str, ...]
    title: str
    says: str
    case: str
    step: int
    ratio: float
    where: tuple[str, ...] = ()
    found_in: str = ""
    restore: str = ""
    unknown: bool = False
    also: tuple[str, ...] = ()
    worst: Worst | None = None


@dataclass(frozen=True)
class EngineEvidence:
    """What is known about one engine's (or, in a comparison, one run's) work.

    ``certificates`` is empty where no probe was possible; ``reason`` then says why. ``trace`` is the free run
    (None for a check), ``repeats`` further free runs of the same engine with the same seed. ``tensors`` maps
    names of recorded tensors and final weights to digests: what can be compared bitwise besides losses.
    ``accuracies`` maps training seeds to final test accuracies (0..1) for the equivalence test; ``asked`` are
    the job's own settings (network, data, schedule, seed, ...) by name, which must be equal for runs to be
    comparable. ``flip`` is the first decision taken differently than by the evidence's reference. ``ranks`` is the
    number of ranks that trained. ``skipped`` counts the updates that the free run left out because a gradient
    overflowed float16.
    """

    engine: str
    version: str
    label: str = ""
    run_id: str = ""
    probe_run_id: str = ""
    certificates: tuple[CertificateEvidence, ...] = ()
    reason: str = ""
    causes: tuple[CauseEvidence, ...] = ()
    trace: LossTrace | None = None
    repeats: tuple[LossTrace, ...] = ()
    flip: Flip | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)
    test_accuracy: float | None = None
    accuracies: Mapping[int, float] = field(default_factory=dict)
    ranks: int = 1
    skipped: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for an engine without a name, or a certificate without checks."""
        if not self.engine:
            raise ValueError("evidence: an engine has no name")
        if not self.label:
            object.__setattr__(self, "label", f"{self.engine}@{self.version}" if self.version else self.engine)
        for certificate in self.certificates:
            if not certificate.checks:
                raise ValueError(f"evidence: the certificate of {self.label}, case {certificate.case}, has no checks")

    @property
    def possible(self) -> bool:
        """Whether there is a certificate."""
        return bool(self.certificates)

    @property
    def checks(self) -> tuple[CheckEvidence, ...]:
        """The checks of all cases."""
        return tuple(check for certificate in self.certificates for check in certificate.checks)

    @property
    def failed(self) -> tuple[CheckEvidence, ...]:
        """The failed checks of all cases."""
        return tuple(check for certificate in self.certificates for check in certificate.failed)

    @property
    def worst_ratio(self) -> float:
        """The largest error over its bound; 0 without checks."""
        ratios = [math.inf if math.isnan(check.ratio) else check.ratio for check in self.checks]
        return max(ratios, default=0.0)


@dataclass(frozen=True)
class EnvelopeEvidence:
    """Training runs of one engine from initial weights moved by one unit in the last place."""

    label: str
    unperturbed: LossTrace
    perturbed: tuple[LossTrace, ...]
    repeats: tuple[LossTrace, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Something that could not be run or compared, and why."""

    what: str
    reason: str


@dataclass(frozen=True)
class Evidence:
    """Everything about a job. ``task`` is "train", "check" or "compare"; ``created`` is RFC 3339.

    ``reference`` is the label of the engine that the others are compared with; empty if none ran.
    ``accuracy_margin`` is the largest difference of final accuracies that counts as none.
    """

    job_id: str
    job_name: str
    model: str
    created: str
    semantics: str
    precision: str
    task: str
    engines: tuple[EngineEvidence, ...]
    reference: str = ""
    envelope: EnvelopeEvidence | None = None
    could_not_compare: tuple[Failure, ...] = ()
    accuracy_margin: float = 0.01

    def __post_init__(self) -> None:
        """Raises ValueError for repeated labels or a reference that is not among the engines."""
        labels = [engine.label for engine in self.engines]
        repeated = sorted({label for label in labels if labels.count(label) > 1})
        if repeated:
            raise ValueError(f"evidence: labels used more than once: {', '.join(repeated)}")
        if self.reference and self.reference not in labels:
            raise ValueError(f"evidence: the reference {self.reference} is not among the engines")
        if self.task not in ("train", "check", "compare"):
            raise ValueError(f"evidence: task {self.task!r}")
        if not 0 < self.accuracy_margin < 1:
            raise ValueError(f"evidence: accuracy margin {self.accuracy_margin}")

    def engine(self, label: str) -> EngineEvidence | None:
        """The engine of that label."""
        return next((engine for engine in self.engines if engine.label == label), None)
