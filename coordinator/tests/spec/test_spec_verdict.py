"""The verdict section of a job document."""

from __future__ import annotations

import pytest

from crosstrain.spec import SpecError, dump_document, parse_document

JOB = """
name: j
model: cnn2
training: {optimizer: {sgd: {learning_rate: 0.1}}}
engines: [torch]
"""


@pytest.mark.parametrize(
    ("more", "judged"),
    [
        ("", True),
        ("mode: speed\n", False),
        ("mode: speed\nverdict: {judge: true}\n", True),
        ("verdict: {judge: false}\n", False),
        ("task: check\nmode: speed\n", True),
    ],
)
def test_what_is_judged(more: str, judged: bool) -> None:
    spec = parse_document(JOB + more)
    assert spec.judged is judged
    again = parse_document(dump_document(spec))
    assert again.judged is judged
    assert dump_document(again) == dump_document(spec)


def test_defaults() -> None:
    verdict = parse_document(JOB).verdict
    assert (verdict.probe, verdict.steps, verdict.envelope, verdict.margin) == (True, [0, 1, 2], 4, 0.01)
    assert (verdict.probe_record_mib, verdict.keep_records) == (16, False)


@pytest.mark.parametrize(
    ("section", "field", "text"),
    [
        ("verdict: {steps: []}", "verdict.steps", "at least 1 values"),
        ("verdict: {steps: [0, 0]}", "verdict.steps[1]", "must count upwards"),
        ("verdict: {steps: [3, 1]}", "verdict.steps[1]", "1 after 3"),
        ("verdict: {steps: [1000]}", "verdict.steps[0]", "at most 999"),
        ("verdict: {envelope: -1}", "verdict.envelope", "at least 0"),
        ("verdict: {margin: 0.0}", "verdict.margin", "greater than 0"),
        ("verdict: {envelop: 3}", "verdict.envelop", "did you mean envelope?"),
        ("task: check\nverdict: {probe: false}", "verdict.probe", "must be true"),
        ("task: check\nverdict: {judge: false}", "verdict.judge", "must be true"),
        ("task: check\nweights: ['" + "0" * 64 + "']", "weights", "belong to the task evaluate"),
    ],
)
def test_wrong_values_are_named(section: str, field: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_document(JOB + section + "\n")
    (violation,) = caught.value.violations
    assert violation.field == field
    assert text in violation.description
