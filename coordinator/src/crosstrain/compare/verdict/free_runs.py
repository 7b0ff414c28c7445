"""What the free runs of one engine show: distance from the reference, envelope, flips, repeats."""

from __future__ import annotations

from dataclasses import dataclass

from crosstrain.compare.freerun.accuracy import Tost, tost
from crosstrain.compare.freerun.envelope import Envelope, envelope, outside_share, stays_inside
from crosstrain.compare.freerun.flips import Flip, explains
from crosstrain.compare.freerun.rank import RankTest, rank_test, statistics
from crosstrain.compare.freerun.repeats import Repeats, repeats
from crosstrain.compare.freerun.traces import Difference, LossTrace, difference
from crosstrain.compare.verdict.evidence import EngineEvidence, EnvelopeEvidence, Evidence


@dataclass(frozen=True, eq=False)
class Spread:
    """The envelope of a job, computed once for all engines."""

    evidence: EnvelopeEvidence
    envelope: Envelope
    statistics: list[float]

    @classmethod
    def of(cls, evidence: EnvelopeEvidence | None) -> Spread | None:
        """None without perturbed runs."""
        if evidence is None or not evidence.perturbed:
            return None
        return cls(
            evidence,
            envelope(evidence.unperturbed, evidence.perturbed, evidence.repeats),
            statistics(evidence.unperturbed, evidence.perturbed),
        )


@dataclass(frozen=True)
class FreeRun:
    """One engine's free run against the reference's.

    ``inside`` says whether it stays in the envelope; None where that cannot be said.
    """

    difference: Difference
    share: float | None
    rank: RankTest | None
    inside: bool | None
    flip: Flip | None

    @property
    def departed(self) -> bool:
        """Whether the losses are ever farther apart than rounding of the loss itself."""
        return self.difference.departed_step >= 0

    @property
    def traced(self) -> bool:
        """Whether a decision flip within rounding explains the departure."""
        return explains(self.flip, self.difference.departed_step)

    @property
    def explained(self) -> bool:
        """Whether rounding accounts for the run: no departure, inside the envelope, or traced to a flip.

        Runs of different lengths that never departed are not accounted for: nothing that rounding does ends
        a run early while its losses agree.
        """
        if not self.difference.steps_compared:
            return False
        if not self.departed:
            return self.difference.same_steps
        return self.inside is True or self.traced


def free_run(
    run: LossTrace,
    reference: LossTrace,
    spread: Spread | None,
    own_repeats: tuple[LossTrace, ...] = (),
    flip: Flip | None = None,
) -> FreeRun:
    """Compares a free run with the reference's and with what rounding does."""
    found = difference(run, reference)
    share: float | None = None
    rank: RankTest | None = None
    inside: bool | None = None
    if spread is not None and found.steps_compared:
        share = outside_share(run, reference, spread.envelope, own_repeats, since=found.departed_step)
        rank = _rank(run, reference, spread)
        inside = stays_inside(share, spread.envelope.runs, rank)
    return FreeRun(found, share, rank, inside, flip)


def _rank(run: LossTrace, reference: LossTrace, spread: Spread) -> RankTest | None:
    """The rank test of a run's distance from the unperturbed run; of that run itself, from the reference."""
    centre = spread.evidence.unperturbed
    tested = reference if difference(run, centre).equal else run
    return None if tested is centre else rank_test(tested, centre, spread.evidence.perturbed, spread.statistics)


def pair_accounted(a: LossTrace, b: LossTrace, apart: Difference, spread: Spread | None) -> bool:
    """Whether two free runs never departed, or no farther from one another than the envelope is wide."""
    if apart.departed_step < 0:
        return apart.steps_compared > 0 and apart.same_steps
    if spread is None:
        return False
    share = outside_share(a, b, spread.envelope, since=apart.departed_step)
    return stays_inside(share, spread.envelope.runs, None) is True


def repeats_of(engine: EngineEvidence, reference: EngineEvidence | None) -> Repeats | None:
    """How an engine repeats itself, beside its distance from the reference."""
    if engine.trace is None or not engine.repeats:
        return None
    other = reference.trace if reference is not None and reference is not engine else None
    return repeats(engine.trace, engine.repeats, other)


def accuracy_test(evidence: Evidence, engine: EngineEvidence, reference: EngineEvidence | None) -> Tost | None:
    """The equivalence test of final accuracies against the reference; None without seeds in common."""
    if reference is None or reference is engine:
        return None
    return tost(engine.accuracies, reference.accuracies, evidence.accuracy_margin)
