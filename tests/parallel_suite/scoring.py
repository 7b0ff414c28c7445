"""The verdict on N ranks: against the job's function, and against one rank of the same engine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from crosstrain.compare.certificate import NotComparable, certify
from crosstrain.compare.freerun.traces import LossTrace
from crosstrain.compare.verdict import EngineEvidence
from tests.conformance.suite import Outcome
from tests.fault_suite.verdicts import document, evidence

from .nets import Sampled
from .strategies import Strategy

#: Verdicts that say that N ranks compute what one does.
SAME = ("IDENTICAL", "ROUNDING")


@dataclass(frozen=True)
class Judged:
    """The records of one case in one way of running an engine."""

    evidence: EngineEvidence | None
    worst: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Parity:
    """One case of one engine and strategy. ``certificate``: the engine's verdict alone; ``pair``: against one rank."""

    engine: str
    strategy: str
    case: str
    certificate: str = ""
    pair: str = ""
    worst: float = 0.0
    details: tuple[str, ...] = field(default=(), compare=False)

    @property
    def holds(self) -> bool:
        """Whether N ranks compute what one does."""
        return self.certificate in SAME and self.pair in SAME


def judge(engine: str, label: str, case: Sampled, outcome: Outcome, precision: str = "float32") -> Judged:
    """Certifies the records of a case."""
    if outcome.error:
        return Judged(None, error=outcome.error)
    expected = set(case.steps) | ({-1} if case.test is not None else set())
    lacking = sorted(expected - set(outcome.records))
    if lacking:
        return Judged(None, error=f"steps {lacking} were not recorded")
    try:
        certificate = certify(case.problem(precision), outcome.records)
    except NotComparable as reason:
        return Judged(None, error=f"not comparable: {reason}")
    worst = max((check.ratio for check in certificate.worst_by_kind().values()), default=0.0)
    return Judged(evidence(label, engine, certificate, outcome.records, case.training.batch_size), float(worst))


def compare(engine: str, strategy: Strategy, case: Sampled, alone: Judged, spread: Judged) -> Parity:
    """The verdict on several ranks and on one."""
    if spread.evidence is None or alone.evidence is None:
        reason = spread.error or f"one rank: {alone.error}"
        return Parity(engine, strategy.title, case.name, "ERROR", "ERROR", details=(reason,))
    found = document([alone.evidence, spread.evidence])
    own, pair = found["engines"][1], found["pairs"][0]
    details = () if own["verdict"] in SAME and pair["verdict"] in SAME else (own["sentence"], pair["sentence"])
    return Parity(engine, strategy.title, case.name, own["verdict"], pair["verdict"], spread.worst, details)


def compare_runs(
    engine: str,
    strategy: Strategy,
    case: Sampled,
    alone: tuple[Judged, LossTrace | str],
    spread: tuple[Judged, LossTrace | str],
) -> Parity:
    """The verdict on training runs on several ranks and on one, with what was recorded of the case's steps."""
    joined = []
    for judged, trace in (alone, spread):
        if isinstance(trace, str):
            joined.append(Judged(None, error=trace))
        elif judged.evidence is None:
            joined.append(judged)
        else:
            joined.append(dataclasses.replace(judged, evidence=dataclasses.replace(judged.evidence, trace=trace)))
    return dataclasses.replace(compare(engine, strategy, case, *joined), case=f"{case.name}, trained")
