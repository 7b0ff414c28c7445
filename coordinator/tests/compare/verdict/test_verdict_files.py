"""Files of the verdict: schema, reader, JUnit XML, facts, exit codes."""

from __future__ import annotations

import copy
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from compare.verdict.verdict_cases import BROKEN, TIES, certificate, check, engine, envelope, evidence, flip, trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crosstrain.compare.freerun.traces import LossTrace
from crosstrain.compare.verdict import (
    CauseEvidence,
    EnvelopeEvidence,
    Failure,
    UnreadableVerdict,
    Worst,
    exit_code,
    judge,
    junit_xml,
    read_verdict,
    schema,
    verdict_json,
)
from crosstrain.compare.verdict.facts import fact_differences


def _document() -> dict[str, Any]:
    """A document in which every optional part is there."""
    unknown = CauseEvidence(
        (), "", "", "start", 0, math.inf, unknown=True, worst=Worst((1, 2), math.nan, 0.5, 1e-7),
        where=("forward conv1",))  # fmt: skip
    return judge(
        evidence(
            engine(repeats=(trace(1e-6),), accuracies={1: 0.9, 2: 0.91}, flip=flip(), facts={"threads.intra": "1"}),
            engine("keras-theano", "2.3.1", certificates=(BROKEN,), causes=(TIES, unknown)),
            engine("caffe", "1.0", certificates=(), reason="no compiler"),
            envelope=envelope(),
        )
    )


def test_the_schema_is_valid_and_describes_every_field() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())

    def described(node: Any, where: str) -> None:
        if isinstance(node, dict):
            for name, field in node.get("properties", {}).items():
                target = schema()["$defs"][field["$ref"].rsplit("/", 1)[1]] if "$ref" in field else field
                assert field.get("description") or target.get("description") or "anyOf" in field, f"{where}.{name}"
            for key, value in node.items():
                described(value, f"{where}.{key}")
        elif isinstance(node, list):
            for value in node:
                described(value, where)

    described(schema(), "")


def test_documents_follow_the_schema_and_survive_writing() -> None:
    document = _document()
    jsonschema.Draft202012Validator(schema()).validate(document)
    assert read_verdict(verdict_json(document).encode()) == document
    worst = document["engines"][2]["causes"][1]["worst"]
    assert worst["found"] == "nan"
    assert document["engines"][2]["causes"][1]["ratio"] == "inf"
    assert math.isnan(float(worst["found"]))


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text(verdict_json(_document()), "utf-8")
    assert read_verdict(path)["verdict"] == "MISMATCH"
    assert read_verdict(str(path))["exit_code"] == 1
    with pytest.raises(UnreadableVerdict, match="cannot be read"):
        read_verdict(tmp_path / "missing.json")
    with pytest.raises(UnreadableVerdict, match="cannot be read"):
        read_verdict(tmp_path)


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "not JSON"),
        (b"\xff\xfe{}", "not UTF-8 at byte 0"),
        (b"[]", "whole document"),
        (b"null", "whole document"),
        (b'{"a": NaN}', "NaN is no JSON value"),
        (b'{"a": 1, "a": 2}', "used twice"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"schema_version": ' + b"9" * 5000 + b"}", "more than 20 digits"),
        (b'{"schema_version": 2}', "schema version 2 is newer"),
    ],
)
def test_what_is_no_verdict_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(UnreadableVerdict, match=said):
        read_verdict(data)


def test_a_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crosstrain.compare.verdict.reading.MOST_BYTES", 2 * 2**20)
    with pytest.raises(UnreadableVerdict, match="larger than 2 MiB"):
        read_verdict(b" " * (2 * 2**20 + 1))


@pytest.mark.parametrize(
    "path, value, said",
    [
        (("verdict",), "SAME", "field verdict"),
        (("verdict",), "ROUNDING", "field exit_code: 1 where ROUNDING means 0"),
        (("exit_code",), 3, "field exit_code"),
        (("created",), "yesterday", "field created"),
        (("engines", 0, "certificate", "checks"), -1, r"engines\[0\].certificate.checks"),
        (("engines", 0, "label"), "keras-theano@2.3.1", "more than once"),
        (("engines", 1, "free_run", "departed_step"), "3", r"engines\[1\].free_run"),
        (("pairs", 0, "a"), "nobody", r"pairs\[0\].a"),
        (("pairs", 0, "extra"), 1, "extra"),
        (("envelope", "low"), [1.0], "different lengths"),
        (("engines", 2, "certificate", "layers", 0, "ratio"), "many", "ratio"),
    ],
)
def test_damaged_documents_are_refused_with_the_field(path: tuple[Any, ...], value: Any, said: str) -> None:
    document = _document()
    place = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(UnreadableVerdict, match=said):
        read_verdict(json.dumps(document).encode())


#: Fields that older documents do not have.
_NEW = {"departure", "parity"}


@pytest.mark.parametrize("name", sorted(_document().keys() - _NEW))
def test_every_field_is_needed(name: str) -> None:
    document = _document()
    del document[name]
    with pytest.raises(UnreadableVerdict, match=name):
        read_verdict(json.dumps(document).encode())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damage_anywhere_is_refused_or_harmless(data: st.DataObject) -> None:
    """Cut, or with bytes changed: either an error that says so, or a document."""
    text = bytearray(verdict_json(_SAMPLE).encode())
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text) - 3))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_verdict(bytes(text))
    except UnreadableVerdict as error:
        assert str(error).isprintable() and len(str(error)) < 600
    else:
        assert found["schema_version"] == 1


_SAMPLE = _document()


def test_junit() -> None:
    root = ElementTree.fromstring(junit_xml(_document()))
    assert root.tag == "testsuites"
    suite = root[0]
    cases = suite.findall("testcase")
    # Four engines with certificate and free run, six pairs.
    assert len(cases) == 14 == int(suite.attrib["tests"])
    assert len(suite.findall("testcase/failure")) == int(suite.attrib["failures"])
    assert len(suite.findall("testcase/error")) == int(suite.attrib["errors"])
    assert len(suite.findall("testcase/skipped")) == int(suite.attrib["skipped"])
    by_name = {(case.attrib["classname"], case.attrib["name"]): case for case in cases}
    bad = by_name["crosstrain.keras-theano@2.3.1", "certificate"].find("failure")
    assert bad is not None and "every tied maximum" in bad.attrib["message"] and bad.text == bad.attrib["message"]
    assert by_name["crosstrain.keras-theano@2.3.1", "free run"].find("skipped") is not None
    assert by_name["crosstrain.caffe@1.0", "certificate"].find("error") is not None
    assert len(by_name["crosstrain.torch@2.13.0", "certificate"]) == 0
    assert len(by_name["crosstrain.torch@2.13.0", "free run"]) == 0


def test_junit_of_a_check_and_of_what_could_not_be_compared() -> None:
    document = judge(
        evidence(engines=(engine("lasagne", "0.1", trace=None),), task="check",
                 could_not_compare=(Failure("caffe@1.0", "its artifact is missing"),))
    )  # fmt: skip
    suite = ElementTree.fromstring(junit_xml(document))[0]
    assert [case.attrib["name"] for case in suite.findall("testcase")] == ["certificate", "caffe@1.0"]
    error = suite.find("testcase/error")
    assert error is not None and error.text == "its artifact is missing"


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40))
def test_junit_is_xml_whatever_texts_hold(text: str) -> None:
    document = copy.deepcopy(_SAMPLE)
    document["job_name"] = document["sentence"] = text
    for item in document["engines"]:
        item["sentence"] = item["label"] = f"<&\"']]>\x00\x1b{text}"
    root = ElementTree.fromstring(junit_xml(document).encode("utf-8", "surrogatepass"))
    assert len(root[0].findall("testcase")) == 14


def test_a_long_envelope_is_thinned_and_keeps_its_extremes() -> None:
    steps = np.arange(150_000)
    base = LossTrace(steps, np.ones(150_000))
    losses = np.full(150_000, 1.001)
    losses[77_777] = 5.0
    spread = EnvelopeEvidence("lasagne@0.1", base, (LossTrace(steps, losses),) * 4)
    found = judge(evidence(envelope=spread))["envelope"]
    assert len(found["steps"]) == len(found["low"]) == len(found["high"]) == 2000
    assert found["steps"] == sorted(set(found["steps"]))
    assert max(found["high"]) == 5.0
    assert min(found["low"]) == -3.0


def test_rows_keep_the_worst_step_and_failures_come_first() -> None:
    checks = [check(step=step, ratio=ratio) for step, ratio in ((0, 0.2), (1, 0.9), (2, 0.3))]
    late = check("update", "dense.weight", 3.0, step=2)
    layers = judge(evidence(engine(certificates=(certificate(*checks, late),))))["engines"][1]["certificate"]["layers"]
    assert [(item["subject"], item["step"], item["holds"]) for item in layers] == [
        ("dense.weight", 2, False),
        ("conv1", 1, True),
    ]
    assert layers[0]["layer"] == "dense"


def test_fact_differences() -> None:
    a = {"threads.intra": "1", "run.pid": "71", "job_id": "x", "env.THEANO_FLAGS": "base_compiledir=/tmp/a1,cxx=g++",
         "library.blas": "openblas 0.3.21", "only.a": "1", "service.port": "5000"}  # fmt: skip
    b = {"threads.intra": "2", "run.pid": "72", "job_id": "y", "env.THEANO_FLAGS": "base_compiledir=/tmp/b2,cxx=g++",
         "library.blas": "openblas 0.3.30", "service.port": "5001"}  # fmt: skip
    assert fact_differences(a, b) == [
        {"name": "library.blas", "a": "openblas 0.3.21", "b": "openblas 0.3.30"},
        {"name": "only.a", "a": "1", "b": ""},
        {"name": "threads.intra", "a": "1", "b": "2"},
    ]
    assert fact_differences(a, a) == []


def test_flags_beside_a_path_still_count() -> None:
    rows = fact_differences({"env.THEANO_FLAGS": "base_compiledir=/tmp/a,optimizer=fast_run"},
                            {"env.THEANO_FLAGS": "base_compiledir=/tmp/b,optimizer=None"})  # fmt: skip
    assert len(rows) == 1


def test_exit_codes() -> None:
    codes = {verdict: exit_code(verdict) for verdict in ("IDENTICAL", "ROUNDING", "MISMATCH", "INCONCLUSIVE")}
    assert codes == {"IDENTICAL": 0, "ROUNDING": 0, "MISMATCH": 1, "INCONCLUSIVE": 2}
    assert exit_code("INCONCLUSIVE", True) == 3
    assert exit_code("MISMATCH", True) == 1
