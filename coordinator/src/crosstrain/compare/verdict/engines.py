"""The verdict on one engine: the rules, and the sentence and next steps that go with them."""

from __future__ import annotations

from dataclasses import dataclass

from crosstrain.compare.freerun.accuracy import Tost
from crosstrain.compare.freerun.repeats import Repeats
from crosstrain.compare.freerun.traces import difference
from crosstrain.compare.verdict import phrases
from crosstrain.compare.verdict.evidence import EngineEvidence, Evidence
from crosstrain.compare.verdict.exits import IDENTICAL, INCONCLUSIVE, MISMATCH, ROUNDING
from crosstrain.compare.verdict.free_runs import FreeRun, Spread, accuracy_test, free_run, repeats_of
from crosstrain.compare.verdict.names import sentence


@dataclass(frozen=True)
class EngineFinding:
    """The verdict on one engine and what it rests on."""

    evidence: EngineEvidence
    verdict: str
    sentence: str
    next_steps: tuple[str, ...]
    free_run: FreeRun | None
    repeats: Repeats | None
    tost: Tost | None

    @property
    def accounted(self) -> bool:
        """Whether rounding accounts for the free run, or there is none to account for."""
        return self.free_run is None or self.free_run.explained


def bitwise_equal(a: EngineEvidence, b: EngineEvidence) -> bool:
    """Whether all that was recorded of both is bitwise equal: at least one tensor, and every loss.

    Losses alone do not count: engines that compute different functions can print equal losses.
    """
    names = a.tensors.keys() & b.tensors.keys()
    if not names or any(a.tensors[name] != b.tensors[name] for name in names):
        return False
    if a.trace is None or b.trace is None:
        return a.trace is b.trace
    found = difference(a.trace, b.trace)
    return found.equal and found.same_steps


def judge_engine(evidence: Evidence, engine: EngineEvidence, spread: Spread | None) -> EngineFinding:
    """Applies the rules to one engine, in their order."""
    reference = evidence.engine(evidence.reference) if evidence.reference else None
    other = None if reference is engine else reference
    found: FreeRun | None = None
    if other is not None and engine.trace is not None and other.trace is not None:
        found = free_run(engine.trace, other.trace, spread, engine.repeats, engine.flip)
    own = repeats_of(engine, reference)
    test = accuracy_test(evidence, engine, reference)
    verdict, text, steps = _decide(evidence, engine, other, found, own, test)
    notes = [] if verdict == MISMATCH else phrases.notes(engine, found, own, test)
    return EngineFinding(
        engine, verdict, " ".join(sentence(part) for part in (text, *notes) if part), tuple(steps), found, own, test
    )


def _decide(
    evidence: Evidence,
    engine: EngineEvidence,
    other: EngineEvidence | None,
    found: FreeRun | None,
    own: Repeats | None,
    test: Tost | None,
) -> tuple[str, str, list[str]]:
    name = phrases.name_of(engine)
    if engine.failed:
        return MISMATCH, phrases.mismatch(engine), []
    if other is not None and bitwise_equal(engine, other):
        return IDENTICAL, f"{name} gave bitwise the same losses and tensors as {phrases.name_of(other)}", []
    if not engine.possible:
        return INCONCLUSIVE, phrases.no_probe(engine), phrases.after_no_probe(engine, own)
    if evidence.task == "train" or (evidence.task == "compare" and any(item.trace for item in evidence.engines)):
        missing = phrases.no_free_run(engine, other if evidence.reference != engine.label else engine)
        if missing:
            return INCONCLUSIVE, missing, [phrases.RUN_AGAIN]
    if found is not None and other is not None and engine.skipped != other.skipped:
        return INCONCLUSIVE, phrases.other_updates(engine, other), [phrases.NO_OVERFLOW]
    if found is not None and not found.explained:
        if other is not None and other.failed:
            return INCONCLUSIVE, phrases.wrong_reference(engine, other), [phrases.OTHER_REFERENCE]
        return INCONCLUSIVE, phrases.unexplained(engine, found, own), phrases.after_unexplained(engine, found, own)
    if test is not None and test.different:
        return INCONCLUSIVE, phrases.other_accuracy(engine, test), [phrases.MORE_PROBES]
    if other is None and all(certificate.identical for certificate in engine.certificates):
        return IDENTICAL, phrases.exact(engine), []
    return ROUNDING, phrases.rounding(engine, other, found), []
