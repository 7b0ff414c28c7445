"""What the verdict says of a planted fault, and whether that is what was planted."""

from __future__ import annotations

from dataclasses import dataclass, field

from crosstrain.compare import causes as conventions
from crosstrain.compare.certificate import NotComparable, certify
from tests.conformance.suite import Outcome

from .faults import Fault
from .verdicts import MISMATCH, document, evidence

#: Stands for a failed check that no convention explains.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Score:
    """One fault in one engine. ``verdict``: on the engine; ``found``: the ids named; ``first``: the first failed
    check; ``error``: why the case could not be judged.
    """

    fault: Fault
    engine: str
    verdict: str = ""
    found: tuple[str, ...] = ()
    first: str = ""
    error: str = ""
    details: tuple[str, ...] = field(default=(), compare=False)

    @property
    def caught(self) -> bool:
        """Whether the verdict is a mismatch."""
        return self.verdict == MISMATCH

    @property
    def named(self) -> bool:
        """Whether exactly the planted conventions are named."""
        return self.caught and not self.error and set(self.found) == self.fault.names


def judge(fault: Fault, engine: str, outcome: Outcome) -> Score:
    """Compares the records with what the engine is said to compute."""
    if outcome.error:
        return Score(fault, engine, error=outcome.error)
    problem = fault.claimed.problem()
    try:
        certificate = certify(problem, outcome.records)
    except NotComparable as reason:
        return Score(fault, engine, error=f"not comparable: {reason}")
    known = evidence(engine, engine, certificate, outcome.records, fault.claimed.training.batch_size)
    verdict = document([known])["engines"][0]["verdict"]
    if certificate.holds:
        return Score(fault, engine, verdict)
    causes = conventions.explain(problem, outcome.records, certificate)
    found: dict[str, None] = {}
    details = []
    for cause in causes:
        for name in (UNKNOWN,) if cause.unknown else cause.ids:
            found[name] = None
        also = f" (as well: {', '.join(cause.also)})" if cause.also else ""
        places = "; ".join(cause.where)[:300]
        details.append(f"{', '.join(cause.ids) or UNKNOWN}{also}: {cause.ratio:.3g} of the bound in {places}")
    first = certificate.first_failure
    shown = f"{first.kind} of {first.subject}, step {first.step}" if first else ""
    return Score(fault, engine, verdict, tuple(found), shown, details=tuple(details))
