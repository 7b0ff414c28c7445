"""From evidence to the verdict document."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from crosstrain.compare.freerun.envelope import MINIMUM_RUNS
from crosstrain.compare.freerun.traces import DEPARTURE, departure
from crosstrain.compare.verdict import phrases, rows
from crosstrain.compare.verdict.engines import EngineFinding, judge_engine
from crosstrain.compare.verdict.evidence import Evidence, Failure
from crosstrain.compare.verdict.exits import IDENTICAL, INCONCLUSIVE, MISMATCH, ROUNDING, exit_code, worst
from crosstrain.compare.verdict.free_runs import Spread
from crosstrain.compare.verdict.names import counted, sentence, shown
from crosstrain.compare.verdict.pairs import asked_differently, judge_pair

SCHEMA_VERSION = 1


def judge(evidence: Evidence) -> dict[str, Any]:
    """The verdict document, as described by ``verdict.schema.json``; every value is a JSON value.

    A mismatch that was found stands whatever else could not be compared. Otherwise anything that could not
    be compared makes the whole inconclusive, with exit code 3.
    """
    spread = Spread.of(evidence.envelope)
    findings = [judge_engine(evidence, engine, spread) for engine in evidence.engines]
    pairs = [judge_pair(a, b, spread) for a, b in combinations(findings, 2)]
    failures = list(evidence.could_not_compare)
    failures += [
        failure
        for a, b in combinations(evidence.engines, 2)
        if (failure := asked_differently(a, b)) is not None
    ]
    verdict = _whole(evidence, findings, pairs, failures)
    reference = evidence.engine(evidence.reference) if evidence.reference else None
    return {
        "schema_version": SCHEMA_VERSION,
        "job_id": evidence.job_id,
        "job_name": evidence.job_name,
        "model": evidence.model,
        "created": evidence.created,
        "semantics": evidence.semantics,
        "precision": evidence.precision,
        "parity": phrases.parity(evidence.precision, evidence.engines),
        "departure": max((departure(item.trace.unit) for item in evidence.engines if item.trace), default=DEPARTURE),
        "task": evidence.task,
        "verdict": verdict,
        "sentence": _sentence(evidence, verdict, findings, pairs, failures),
        "next_steps": _next_steps(evidence, verdict, findings, failures),
        "exit_code": exit_code(verdict, bool(failures)),
        "reference": {
            "engine": reference.engine if reference else "",
            "version": reference.version if reference else "",
            "label": evidence.reference,
        },
        "engines": [_engine_row(finding) for finding in findings],
        "pairs": pairs,
        "envelope": rows.envelope_row(evidence.envelope.label, spread.envelope)
        if evidence.envelope is not None and spread is not None
        else None,
        "could_not_compare": [{"what": failure.what, "reason": failure.reason} for failure in failures],
    }


def _whole(
    evidence: Evidence, findings: Sequence[EngineFinding], pairs: Sequence[dict[str, Any]], failures: Sequence[Failure]
) -> str:
    """The worst of the engines; the reference's own ROUNDING is against arithmetic, not against an engine, so
    that it does not keep runs that are bitwise equal from being identical.
    """
    others = [item.verdict for item in findings if item.evidence.label != evidence.reference]
    own = [item.verdict for item in findings if item.evidence.label == evidence.reference]
    if others and own == [ROUNDING]:
        own = []
    found = worst([*others, *own])
    if evidence.task == "compare":
        # Two runs are compared with one another: a convention that both share sets neither apart.
        found = worst(pair["verdict"] for pair in pairs)
    if failures and found != MISMATCH:
        return INCONCLUSIVE
    return found


def _sentence(
    evidence: Evidence,
    verdict: str,
    findings: Sequence[EngineFinding],
    pairs: Sequence[dict[str, Any]],
    failures: Sequence[Failure],
) -> str:
    if verdict != MISMATCH and failures:
        first = failures[0]
        more = f" ({counted(len(failures) - 1, 'further part')} neither)" if len(failures) > 1 else ""
        return sentence(f"could not compare {first.what}: {first.reason.rstrip('.')}{more}")
    if not findings:
        return "Nothing was compared: no engine has any result."
    if evidence.task == "compare" and pairs:
        return str(next(pair["sentence"] for pair in pairs if pair["verdict"] == verdict))
    those = [finding for finding in findings if finding.verdict == verdict]
    others = [finding for finding in findings if finding.evidence.label != evidence.reference]
    if verdict in (MISMATCH, INCONCLUSIVE):
        text = those[0].sentence
        if verdict == MISMATCH:
            text = phrases.mismatch_in_short(those[0].evidence)
        if len(those) > 1:
            names = ", ".join(phrases.name_of(finding.evidence) for finding in those[1:])
            text += " " + sentence(f"the same verdict, each for its own reason, falls on: {names}")
        return text
    if len(findings) == 1 or len(others) == 1:
        return (others or findings)[0].sentence
    return _all_agree(evidence, verdict, findings)


def _all_agree(evidence: Evidence, verdict: str, findings: Sequence[EngineFinding]) -> str:
    number = f"all {len(findings)} engines" if len(findings) > 2 else "both engines"
    checks = sum(len(finding.evidence.checks) for finding in findings)
    ratio = shown(max(finding.evidence.worst_ratio for finding in findings))
    if verdict == IDENTICAL:
        return sentence(f"{number} gave bitwise the same losses and tensors")
    proof = f"largest local error {ratio} of the derived bound; {counted(checks, 'check')}"
    if evidence.task == "check":
        return sentence(f"{number} compute the same function up to rounding ({proof})")
    text = sentence(f"{number} computed the same function; their losses differ by rounding only ({proof})")
    unsteady = [item for item in findings if item.repeats is not None and item.repeats.non_deterministic]
    if unsteady:
        names = ", ".join(phrases.name_of(item.evidence) for item in unsteady)
        text += " " + sentence(f"not repeating themselves: {names}")
    return text


def _next_steps(
    evidence: Evidence, verdict: str, findings: Sequence[EngineFinding], failures: Sequence[Failure]
) -> list[str]:
    steps = [f"{failure.what}: {sentence(failure.reason)} Mend this and run again." for failure in failures]
    if verdict == INCONCLUSIVE:
        steps += [step for finding in findings for step in finding.next_steps]
        runs = len(evidence.envelope.perturbed) if evidence.envelope is not None else 0
        if evidence.task == "train" and 0 < runs < MINIMUM_RUNS:
            steps.append(f"The envelope has {phrases.few_runs(runs)}.")
        if not findings:
            steps.append(phrases.RUN_AGAIN)
    if verdict == MISMATCH:
        steps += [
            f"{phrases.name_of(finding.evidence)}, {cause.title or ' and '.join(cause.ids)}: {sentence(cause.restore)}"
            for finding in findings
            for cause in finding.evidence.causes
            if cause.restore
        ]
        if not steps:
            steps.append(phrases.LOOK_AT_ELEMENT)
    return list(dict.fromkeys(steps))


def _engine_row(finding: EngineFinding) -> dict[str, Any]:
    engine = finding.evidence
    return {
        "label": engine.label,
        "engine": engine.engine,
        "version": engine.version,
        "run_id": engine.run_id,
        "probe_run_id": engine.probe_run_id,
        "verdict": finding.verdict,
        "sentence": finding.sentence,
        "certificate": rows.certificate_row(engine),
        "causes": [rows.cause_row(cause) for cause in engine.causes],
        "conventions": {
            "ties": sum(item.ties for item in engine.certificates),
            "zeros": sum(item.zeros for item in engine.certificates),
        },
        "free_run": _free_row(finding),
        "skipped_updates": engine.skipped,
        "repeats": rows.repeats_row(finding.repeats),
        "accuracy": rows.accuracy_row(engine.test_accuracy, finding.tost),
    }


def _free_row(finding: EngineFinding) -> dict[str, Any] | None:
    trace, found = finding.evidence.trace, finding.free_run
    if trace is None:
        return None
    if found is None:
        return {
            "steps": len(trace), "steps_compared": 0, "departed_step": -1, "horizon_step": -1,
            "max_difference": 0.0, "max_difference_step": -1, "outside_envelope_share": None, "rank_test": None,
            "flip": None, "explained": True,
        }  # fmt: skip
    apart = found.difference
    return {
        "steps": len(trace),
        "steps_compared": apart.steps_compared,
        "departed_step": apart.departed_step,
        "horizon_step": apart.horizon_step,
        "max_difference": rows.number(apart.max_abs),
        "max_difference_step": apart.max_step,
        "outside_envelope_share": found.share,
        "rank_test": rows.rank_row(found.rank),
        "flip": rows.flip_row(found.flip),
        "explained": found.explained,
    }
