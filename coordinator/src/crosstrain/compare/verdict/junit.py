"""The verdict as JUnit XML, which CI systems show as tests.

One test case per engine for its certificate, one for its free run where it has one, and one per pair. A
mismatch is a failure, an inconclusive finding an error: neither passes. What could not be compared is an
error of its own.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

from crosstrain.compare.verdict.exits import INCONCLUSIVE, MISMATCH

#: Characters that XML 1.0 cannot hold at all.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(document: dict[str, Any]) -> str:
    """A verdict document as JUnit XML text."""
    cases = list(_cases(document))
    name = _safe(f"crosstrain {document['job_name'] or document['job_id']}")
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
    }
    suites = ElementTree.Element("testsuites", {"name": name, **counts})
    attributes = {"name": name, "timestamp": _safe(document["created"]), **counts}
    suite = ElementTree.SubElement(suites, "testsuite", attributes)
    properties = ElementTree.SubElement(suite, "properties")
    for key in ("job_id", "model", "task", "semantics", "precision", "verdict", "sentence"):
        ElementTree.SubElement(properties, "property", {"name": key, "value": _safe(str(document[key]))})
    suite.extend(cases)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _cases(document: dict[str, Any]) -> Iterator[ElementTree.Element]:
    for engine in document["engines"]:
        yield _certificate(engine)
        if engine["free_run"] is not None:
            yield _free_run(engine)
    for pair in document["pairs"]:
        yield _case("pairs", f"{pair['a']} and {pair['b']}", pair["verdict"], pair["sentence"])
    for item in document["could_not_compare"]:
        case = _element("could not compare", item["what"])
        _add(case, "error", INCONCLUSIVE, item["reason"])
        yield case


def _certificate(engine: dict[str, Any]) -> ElementTree.Element:
    certificate = engine["certificate"]
    if certificate["failed"]:
        return _case(engine["label"], "certificate", MISMATCH, engine["sentence"])
    case = _element(engine["label"], "certificate")
    if not certificate["possible"]:
        _add(case, "error", INCONCLUSIVE, engine["sentence"])
    return case


def _free_run(engine: dict[str, Any]) -> ElementTree.Element:
    case = _element(engine["label"], "free run")
    if engine["certificate"]["failed"]:
        _add(case, "skipped", "not judged", "The certificate fails, so that the losses differ by more than rounding.")
    elif engine["verdict"] == INCONCLUSIVE and engine["certificate"]["possible"]:
        _add(case, "error", INCONCLUSIVE, engine["sentence"])
    elif engine["verdict"] == INCONCLUSIVE:
        _add(case, "skipped", "not judged", "Losses alone show nothing: no step was checked.")
    return case


def _case(suite: str, name: str, verdict: str, sentence: str) -> ElementTree.Element:
    case = _element(suite, name)
    if verdict == MISMATCH:
        _add(case, "failure", MISMATCH, sentence)
    elif verdict == INCONCLUSIVE:
        _add(case, "error", INCONCLUSIVE, sentence)
    return case


def _element(suite: str, name: str) -> ElementTree.Element:
    attributes = {"classname": _safe(f"crosstrain.{suite}"), "name": _safe(name), "time": "0"}
    return ElementTree.Element("testcase", attributes)


def _add(case: ElementTree.Element, tag: str, kind: str, text: str) -> None:
    attributes = {"message": _safe(text)} if tag == "skipped" else {"type": kind, "message": _safe(text)}
    ElementTree.SubElement(case, tag, attributes).text = _safe(text)


def _safe(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
