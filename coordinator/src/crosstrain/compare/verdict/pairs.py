"""The verdict on two engines, or any two runs."""

from __future__ import annotations

from typing import Any

from crosstrain.compare.freerun.traces import Difference, difference
from crosstrain.compare.verdict import phrases
from crosstrain.compare.verdict.engines import EngineFinding, bitwise_equal
from crosstrain.compare.verdict.evidence import EngineEvidence, Failure
from crosstrain.compare.verdict.exits import IDENTICAL, INCONCLUSIVE, MISMATCH, ROUNDING
from crosstrain.compare.verdict.facts import fact_differences
from crosstrain.compare.verdict.free_runs import Spread, pair_accounted
from crosstrain.compare.verdict.names import counted, listed, sentence, shown
from crosstrain.compare.verdict.rows import number


def asked_differently(a: EngineEvidence, b: EngineEvidence) -> Failure | None:
    """Two runs that were asked for different things cannot be compared: says which."""
    names = sorted(name for name in a.asked.keys() | b.asked.keys() if a.asked.get(name) != b.asked.get(name))
    if not names or not a.asked or not b.asked:
        return None
    shown_names = [f"{name} ({a.asked.get(name, 'none')} and {b.asked.get(name, 'none')})" for name in names[:5]]
    more = f" and {counted(len(names) - 5, 'other setting')}" if len(names) > 5 else ""
    return Failure(
        f"{a.label} and {b.label}", f"their jobs ask for different things: {', '.join(shown_names)}{more}"
    )


def judge_pair(a: EngineFinding, b: EngineFinding, spread: Spread | None) -> dict[str, Any]:
    """A row of the document's table of pairs."""
    left, right = a.evidence, b.evidence
    apart = Difference(0, False, -1, 0.0, -1, -1, -1, (0, 0))
    if left.trace is not None and right.trace is not None:
        apart = difference(left.trace, right.trace)
    verdict, text = _decide(a, b, spread, apart)
    differences = fact_differences(left.facts, right.facts)
    if verdict != IDENTICAL:
        text = f"{text}\n{phrases.settings_that_differ(differences)}"
    return {
        "a": left.label,
        "b": right.label,
        "verdict": verdict,
        "sentence": " ".join(sentence(part) for part in text.split("\n") if part),
        "steps_compared": apart.steps_compared,
        "losses_equal": apart.equal and apart.same_steps,
        "first_different_step": apart.first_different_step,
        "max_abs_difference": number(apart.max_abs),
        "max_difference_step": apart.max_step,
        "departed_step": apart.departed_step,
        "horizon_step": apart.horizon_step,
        "fact_differences": differences,
    }


def _decide(a: EngineFinding, b: EngineFinding, spread: Spread | None, apart: Difference) -> tuple[str, str]:
    left, right = a.evidence, b.evidence
    one, other = phrases.name_of(left), phrases.name_of(right)
    asked = asked_differently(left, right)
    if asked is not None:
        return INCONCLUSIVE, f"{one} and {other} could not be compared: {asked.reason}"
    if bitwise_equal(left, right):
        return IDENTICAL, f"{one} and {other} gave bitwise the same losses and tensors"
    for engine, name, opposite in ((left, one, right), (right, other, left)):
        if not engine.possible:
            text = f"{one} and {other} cannot be told apart from rounding: no step of {name} was checked"
            return INCONCLUSIVE, f"{text}\n{phrases.mismatch(opposite)}" if opposite.failed else text
    if left.failed or right.failed:
        shared = _shared_causes(left, right)
        if shared is None:
            return MISMATCH, _apart(left, right)
        verdict, text = _free(a, b, spread, apart, one, other)
        return verdict, f"{text}\nBoth depart from the job's function in the same way: {shared}"
    return _free(a, b, spread, apart, one, other)


def _free(
    a: EngineFinding, b: EngineFinding, spread: Spread | None, apart: Difference, one: str, other: str
) -> tuple[str, str]:
    left, right = a.evidence, b.evidence
    ratio = shown(max(left.worst_ratio, right.worst_ratio))
    number_of_checks = counted(len(left.checks) + len(right.checks), "check")
    holds = f"largest local error {ratio} of the derived bound; {number_of_checks}"
    if left.failed:
        holds = "every other check holds"
    if left.trace is None or right.trace is None:
        if left.trace is None and right.trace is None:
            return ROUNDING, f"{one} and {other} compute the same function up to rounding ({holds})"
        missing = one if left.trace is None else other
        return INCONCLUSIVE, (
            f"{one} and {other} agree in every checked step, but {missing} has no finished training run"
        )
    if left.skipped != right.skipped:
        return INCONCLUSIVE, phrases.other_updates(left, right)
    # Two runs that rounding accounts for against the same reference are accounted for against one another.
    against_reference = (a.free_run is not None or b.free_run is not None) and a.accounted and b.accounted
    departed = apart.departed_step >= 0
    if not (departed and against_reference) and not pair_accounted(left.trace, right.trace, apart, spread):
        return INCONCLUSIVE, (
            f"{one} and {other} agree in every checked step, but their training runs parted"
            f"{_at(left, apart)} and nothing found yet shows that rounding explains it"
        )
    text = f"{one} and {other} computed the same function; their losses differ by rounding only ({holds})"
    if apart.departed_step >= 0:
        text += f"\nthe runs parted at step {apart.departed_step}{phrases.at_change(left.trace, apart.departed_step)}"
    return ROUNDING, text


def _at(engine: EngineEvidence, apart: Difference) -> str:
    step = apart.departed_step
    return f" at step {step}{phrases.at_change(engine.trace, step)}" if step >= 0 else ""


def _shared_causes(a: EngineEvidence, b: EngineEvidence) -> str | None:
    """The causes that two engines share, if they are all of both's and known, and fail the same checks."""
    if not a.causes or not b.causes or any(cause.unknown for cause in (*a.causes, *b.causes)):
        return None
    if {cause.ids for cause in a.causes} != {cause.ids for cause in b.causes}:
        return None
    failed = [{(check.kind, check.subject, check.case) for check in engine.failed} for engine in (a, b)]
    if failed[0] != failed[1]:
        return None
    return listed(list(dict.fromkeys(cause.title or ", ".join(cause.ids) for cause in a.causes)))


def _apart(a: EngineEvidence, b: EngineEvidence) -> str:
    """Which of two engines departs from the job's function, and how."""
    if a.failed and b.failed:
        return f"{phrases.name_of(a)} and {phrases.name_of(b)} do not compute the same function\n" + "\n".join(
            phrases.mismatch(engine) for engine in (a, b)
        )
    bad = a if a.failed else b
    return f"{phrases.name_of(a)} and {phrases.name_of(b)} do not compute the same function\n{phrases.mismatch(bad)}"
