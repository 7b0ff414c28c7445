"""What verdicts say, in words for people who meet them for the first time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crosstrain.compare.freerun.accuracy import Tost
from crosstrain.compare.freerun.envelope import MINIMUM_RUNS
from crosstrain.compare.freerun.repeats import Repeats
from crosstrain.compare.freerun.traces import LossTrace
from crosstrain.compare.numerics.rounding import half_of
from crosstrain.compare.verdict.evidence import CauseEvidence, CheckEvidence, EngineEvidence
from crosstrain.compare.verdict.free_runs import FreeRun
from crosstrain.compare.verdict.names import counted, listed, sentence, shown, shown_name
from crosstrain.compare.verdict.rows import direction

RUN_AGAIN = "Run the job again: `crosstrain run JOB`; the error of the run that is missing says what to mend first."
MORE_PROBES = "Probe more steps: run `crosstrain check JOB` with another seed or more probe steps."
MORE_ENVELOPE = (
    "Make more runs from perturbed initial weights: 4 make the envelope usable, 19 the rank test conclusive."
)
OTHER_REFERENCE = "Run the job with another reference: an engine whose checks hold, such as the NumPy reference."
NO_OVERFLOW = (
    "Run the job in mixed_bfloat16, where nothing overflows, or in float32: which updates float16 leaves out depends "
    "on the factor that a framework multiplies the loss by."
)
LOOK_AT_ELEMENT = (
    "No known convention explains the failure: compute the value of the worst element by hand from the records."
)
#: Facts that tell why results of one engine differ, and how they are called.
_SETTINGS = {
    "maths.precision": "precision",
    "maths.tf32": "TF32",
    "maths.mode": "mode",
    "maths.semantics": "semantics",
    "maths.deterministic": "deterministic algorithms",
    "maths.compiler": "compiler",
    "device.kind": "device",
    "threads.intra": "threads",
}
FLIP_PROBE = "Let `crosstrain run JOB` look for the first decision that the runs take differently (flip probes)."


def name_of(engine: EngineEvidence) -> str:
    """The engine's name in sentences."""
    return shown_name(engine.engine, engine.version, engine.label)


def place(check: CheckEvidence) -> str:
    """Where a check is: "step 0, layer pool1, backward"."""
    where = "the evaluation" if check.step < 0 else f"step {check.step}"
    part = direction(check.kind)
    if check.kind == "loss":
        return f"{where}, the loss"
    if part in ("forward", "backward"):
        return f"{where}, layer {check.subject}, {part}"
    return f"{where}, {check.kind} of {check.subject}"


def evidence_of(engine: EngineEvidence) -> str:
    """The certificate in brackets' worth of words."""
    number = counted(len(engine.checks), "check")
    return f"largest local error {shown(engine.worst_ratio)} of the derived bound; {number}"


def mismatch(engine: EngineEvidence) -> str:
    """What is wrong, where it was first seen and how parity is restored."""
    first = engine.failed[0]
    known = [cause for cause in engine.causes if not cause.unknown]
    parts = [f"{name_of(engine)} does not compute the same function: {_what(engine.causes, first)}"]
    parts += [cause.says for cause in known[1:] if cause.says]
    unknown = [cause for cause in engine.causes if cause.unknown]
    if known and unknown:
        places = sorted({item for cause in unknown for item in cause.where})
        parts.append("besides, no known convention explains " + (listed(places) if places else "some failed checks"))
    scope = _scope(engine)
    if scope:
        parts.append(scope)
    restore = list(dict.fromkeys(cause.restore.rstrip(".") for cause in known if cause.restore))
    if restore:
        parts.append("To restore parity: " + "; ".join(restore))
    return " ".join(sentence(part) for part in parts)


def mismatch_in_short(engine: EngineEvidence) -> str:
    """What is wrong first, and how much else."""
    text = f"{name_of(engine)} does not compute the same function: {_what(engine.causes, engine.failed[0])}"
    parts = [text, *([_scope(engine)] if _scope(engine) else [])]
    known = [cause for cause in engine.causes if not cause.unknown]
    titles = list(dict.fromkeys(cause.title or " and ".join(cause.ids) for cause in known))
    if len(titles) > 1:
        further = counted(len(titles) - 1, "further convention differs", "further conventions differ")
        parts.append(f"{further}: {listed(titles[1:])}")
    elif known and known[0].restore:
        parts.append(f"To restore parity: {known[0].restore}")
    return " ".join(sentence(part) for part in parts)


def settings_that_differ(differences: Sequence[dict[str, str]]) -> str:
    """The settings among two runs' facts that change results, where the versions are the same."""
    told = [row for row in differences if row["name"] in _SETTINGS]
    if not told or any(row["name"] in ("engine.name", "engine.version") for row in differences):
        return ""
    return "what they were set to differs: " + ", ".join(
        f"{_SETTINGS[row['name']]} {row['a'] or 'none'} and {row['b'] or 'none'}" for row in told
    )


def _what(causes: Sequence[CauseEvidence], first: CheckEvidence) -> str:
    seen = f"(first seen at {place(first)})"
    known = [cause for cause in causes if not cause.unknown]
    if known:
        says = known[0].says or known[0].title
        return f"{_lower(says.rstrip('.'))} {seen}"
    worst = ""
    if first.coordinates is not None and first.found is not None and first.expected is not None:
        at = ", ".join(map(str, first.coordinates))
        worst = f"; at ({at}) it has {first.found:.7g} where {first.expected:.7g} is expected"
        if first.bound is not None:
            worst += f" within {first.bound:.2g}"
    elif first.note:
        worst = f"; {first.note.strip(' :;.')}"
    return f"cause unknown {seen[:-1]}{worst})"


def _lower(text: str) -> str:
    """With a small letter in front, unless the first word is a name or an abbreviation."""
    word = text.split(" ", 1)[0]
    return text if len(word) > 1 and not word[1:].islower() and "-" not in word else text[:1].lower() + text[1:]


def _scope(engine: EngineEvidence) -> str:
    """Whether only part of the training is affected."""
    failed = engine.failed
    if all(check.step < 0 for check in failed):
        return "Training agrees, only the evaluation differs"
    if all(check.kind == "loss" for check in failed):
        return "Gradients and updates agree, only the loss reported differs"
    held = {certificate.case for certificate in engine.certificates if not certificate.failed}
    if "start" in held and all(check.case == "rate-change" for check in failed):
        return "It differs only from where the learning rate changes"
    if "start" in held and all(check.case == "last-batch" for check in failed):
        return "It differs only in a smaller last batch"
    return ""


def parity(precision: str, engines: Sequence[EngineEvidence]) -> str:
    """What "the same" means in mixed precision, and which updates were left out; empty in plain precision."""
    half = half_of(precision)
    if not half:
        return ""
    bits = {"float16": 11, "bfloat16": 8}[half]
    parts = [
        f"in {precision}, parameters, gradients, optimizer state, update and loss are float32 and layers are computed "
        f"in {half}, with {bits} significant bits",
        f"the same function then means: every layer, from the engine's own inputs, within what rounding factors and "
        f"results to {half} can do; every update right to float32 for its gradients; and losses no farther apart than "
        f"those of runs whose initial weights differ in the last place of {half}",
    ]
    left = [engine for engine in engines if engine.skipped]
    if left:
        shares = [f"{name_of(engine)} {counted(engine.skipped, 'update')}{_of_all(engine)}" for engine in left]
        parts.append(f"left out because a gradient overflowed float16, so many updates fewer: {listed(shares)}")
        if len({engine.skipped for engine in engines if engine.trace is not None}) > 1:
            parts.append("the engines did not make the same number of updates, and their losses differ by that as well")
    elif half == "float16" and any(engine.trace is not None for engine in engines):
        parts.append("no update was left out")
    return " ".join(sentence(part) for part in parts)


def _of_all(engine: EngineEvidence) -> str:
    return f" of {len(engine.trace):,}" if engine.trace is not None else ""


def left_out(engine: EngineEvidence) -> str:
    """How many updates an engine left out; empty if none."""
    if not engine.skipped:
        return ""
    return f"it left out {counted(engine.skipped, 'update')}{_of_all(engine)} because a gradient overflowed float16"


def other_updates(engine: EngineEvidence, other: EngineEvidence) -> str:
    """Two runs that did not make the same number of updates."""
    made = [
        f"{name_of(item)} left out {counted(item.skipped, 'update')}{_of_all(item)}" if item.skipped
        else f"{name_of(item)} none"
        for item in (engine, other)
    ]  # fmt: skip
    return (
        f"every checked step of {name_of(engine)} holds ({evidence_of(engine)}), but the training runs did not make "
        f"the same updates: because a gradient overflowed float16, {listed(made)}"
    )


def no_probe(engine: EngineEvidence) -> str:
    """Why there is no certificate."""
    reason = f": {engine.reason.rstrip('.')}" if engine.reason else ""
    return (
        f"Whether {name_of(engine)} computed the same function cannot be said: no step of it was checked{reason}. "
        "Loss curves alone do not tell rounding from a fault"
    )


def no_free_run(engine: EngineEvidence, other: EngineEvidence | None) -> str:
    """What is missing of the free runs; empty if nothing is."""
    holds = f"every checked step of {name_of(engine)} holds"
    if engine.trace is None or not len(engine.trace):
        return f"{holds}, but it has no finished training run to compare"
    if other is None:
        return f"{holds}, but there is no reference run to compare its training with"
    if other.trace is None or not len(other.trace):
        return f"{holds}, but the reference {name_of(other)} has no finished training run"
    return ""


def wrong_reference(engine: EngineEvidence, other: EngineEvidence) -> str:
    """A reference that fails its own checks is nothing to compare a training run with."""
    return (
        f"every checked step of {name_of(engine)} holds ({evidence_of(engine)}), but its training run left that of "
        f"{name_of(other)}, which does not compute the job's function itself"
    )


def unexplained(engine: EngineEvidence, found: FreeRun, own: Repeats | None) -> str:
    """A free run that rounding does not account for though every check holds."""
    name, apart = name_of(engine), found.difference
    holds = f"every checked step of {name} holds ({evidence_of(engine)})"
    if not apart.steps_compared:
        return f"{holds}, but its training run has no step in common with the reference's"
    if not found.departed:
        counts = " and ".join(f"{count:,}" for count in apart.lengths)
        return (
            f"{holds}, but the training runs ended after different numbers of steps ({counts}) though their losses "
            "agree"
        )
    where = f"step {apart.departed_step}{at_change(engine.trace, apart.departed_step)}"
    text = f"{holds}, but its training run left the reference at {where}"
    if found.inside is None:
        text += ", and too few perturbed runs say how far rounding carries this job"
    else:
        share = f"outside at {100 * (found.share or 0):.0f} % of the steps"
        text += f" and left the envelope of rounding ({share})"
    if found.flip is None:
        return text + ", with no decision flip found that explains it"
    if found.flip.is_rounding:
        return text + f"; the first flip found comes after that, at step {found.flip.step}"
    wide = f"{shown(found.flip.ratio)} of the bound"
    return text + f"; its first decision flip, in layer {found.flip.layer}, is wider than rounding ({wide})"


def at_change(trace: LossTrace | None, step: int) -> str:
    """Says so if a step is where the learning rate changes, or the first whose loss that can touch.

    A loss is taken before its step's update, so a changed rate shows one step later. Where the rate changes
    all the time, a change tells nothing.
    """
    if trace is None or step < 0:
        return ""
    changes = trace.rate_changes()
    if len(changes) * 10 > len(trace):
        return ""
    if step in changes:
        return ", where the learning rate changes"
    return ", right after the learning rate changed" if step - 1 in changes else ""


def after_no_probe(engine: EngineEvidence, own: Repeats | None) -> list[str]:
    """What to run where there is no certificate."""
    steps = ["Check the engines step by step: `crosstrain check JOB`."]
    if own is None:
        steps.append("Repeat the run (`repeats: 2` in the job) to see whether the engine repeats itself.")
    return steps


def after_unexplained(engine: EngineEvidence, found: FreeRun, own: Repeats | None) -> list[str]:
    """What to run where a free run is not accounted for."""
    steps = []
    if found.inside is None or (found.rank is not None and not found.rank.conclusive):
        steps.append(MORE_ENVELOPE)
    if found.departed and found.flip is None:
        steps.append(FLIP_PROBE)
    if own is None:
        steps.append("Repeat the run (`repeats: 2` in the job) to see whether the engine repeats itself.")
    steps.append(MORE_PROBES)
    return steps


def other_accuracy(engine: EngineEvidence, test: Tost) -> str:
    """Accuracies that differ though every check holds."""
    return (
        f"every checked step of {name_of(engine)} holds, but over {counted(test.seeds, 'seed')} its final accuracy "
        f"differs from the reference's by {100 * test.mean_difference:+.2f} points, more than the margin of "
        f"{100 * test.margin:.2g}"
    )


def exact(engine: EngineEvidence) -> str:
    """Every check is exact."""
    number = counted(len(engine.checks), "check")
    return f"{name_of(engine)} computed exactly the function that the job asks for ({number}, no error)"


def rounding(engine: EngineEvidence, other: EngineEvidence | None, found: FreeRun | None) -> str:
    """The same function up to rounding."""
    if other is None or found is None:
        return f"{name_of(engine)} computes the function that the job asks for up to rounding ({evidence_of(engine)})"
    return (
        f"{name_of(engine)} and {name_of(other)} computed the same function; their losses differ by rounding only "
        f"({evidence_of(engine)})"
    )


def notes(engine: EngineEvidence, found: FreeRun | None, own: Repeats | None, test: Tost | None) -> list[str]:
    """Further sentences that belong to a verdict that is no mismatch."""
    lines = [left_out(engine)] if engine.skipped else []
    if found is not None and found.departed and found.explained:
        step = found.difference.departed_step
        where = f"the runs parted at step {step}{at_change(engine.trace, step)}"
        if found.traced and found.flip is not None:
            flip = found.flip
            lines.append(
                f"{where}: at step {flip.step} {flip.count:,} of {flip.decisions:,} decisions of layer {flip.layer} "
                f"fell otherwise, the widest gap being {shown(flip.ratio)} of the rounding bound"
            )
        else:
            lines.append(f"{where} and stayed within what rounding does to this job")
    if found is not None and found.difference.steps_compared and not found.difference.same_steps:
        lines.append(f"compared over the {counted(found.difference.steps_compared, 'step')} that both runs have")
    if own is not None and own.non_deterministic:
        text = f"{name_of(engine)} does not repeat itself: {counted(own.runs, 'run')} with one seed differ"
        text += f" from step {own.first_different_step} on"
        if own.dominates:
            text += ", by at least as much as it differs from the reference: the source is non-determinism"
        if engine.facts.get("maths.deterministic") == "true":
            text += " (though deterministic algorithms were asked for)"
        lines.append(text)
    ties = sum(certificate.ties for certificate in engine.certificates)
    zeros = sum(certificate.zeros for certificate in engine.certificates)
    if ties or zeros:
        where = f"{counted(ties, 'exact tie')} and {counted(zeros, 'exact zero')}"
        lines.append(f"at {where} it chose another valid gradient than the reference")
    if engine.trace is not None and len(engine.trace):
        bad = first_not_finite(engine.trace)
        if bad >= 0:
            lines.append(f"its loss is not finite at step {bad}")
    if test is not None and test.equivalent is None and test.seeds > 1:
        needed = f" of {test.needed_seeds:,} needed" if test.needed_seeds is not None else ""
        lines.append(f"final accuracies cannot be called equivalent yet: {counted(test.seeds, 'seed')}{needed}")
    elif test is not None and test.equivalent:
        seeds = counted(test.seeds, "seed")
        lines.append(f"final accuracies are equivalent within {100 * test.margin:.2g} points over {seeds}")
    return lines


def first_not_finite(trace: LossTrace) -> int:
    """The first step whose loss is not finite; -1 if all are."""
    bad = ~np.isfinite(trace.losses)
    return int(trace.steps[int(bad.argmax())]) if bad.any() else -1


def few_runs(runs: int) -> str:
    """Why so few perturbed runs decide nothing."""
    return f"{counted(runs, 'perturbed run')}; at least {MINIMUM_RUNS} are needed"
