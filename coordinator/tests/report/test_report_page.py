"""The page: small, fetching nothing, safe against what names and errors hold, whole with parts missing."""

from __future__ import annotations

import base64
import copy
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from crosstrain.compare.verdict import read_verdict, verdict_json
from crosstrain.report import SIZE_LIMIT, ReportData, RunData, render_report, write_report
from doubles.report_sample import LABELS, sample_data, sample_verdict

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' onload='alert(3)' <!-- {{ 7*7 }} `</p>`"


class Page(HTMLParser):
    """Elements of a page with their attributes, and the content of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")
        if tag == "style":
            self.styles.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "style":
            self.styles[-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def attributes(self, name: str) -> list[str | None]:
        return [attrs[name] for _, attrs in self.elements if name in attrs]

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


@pytest.fixture(scope="module")
def data() -> ReportData:
    return sample_data()


@pytest.fixture(scope="module")
def page(data: ReportData) -> Page:
    return Page(render_report(read_verdict(verdict_json(sample_verdict(data)).encode()), data))


def assert_safe(page: Page) -> None:
    """Nothing but the page's own script and style, nothing fetched, no event attribute."""
    assert [tag for tag, _ in page.elements].count("script") == 2
    for _, attrs in page.elements:
        assert not [name for name in attrs if name.startswith("on") or name in ("style", "srcset", "action")]
    for name in ("src", "href"):
        for value in page.attributes(name):
            assert value is not None and value.startswith(("#", "data:image/svg+xml;base64,"))
    assert not any(re.search(r"@import|url\(", style) for style in page.styles)
    policy = next(
        attrs for tag, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    told = str(policy["content"])
    for source, kind in ((page.scripts[1], "script-src"), (page.styles[0], "style-src")):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in told
    assert "default-src 'none'" in told
    assert "unsafe" not in told


def test_the_page_holds_verdict_evidence_and_charts(page: Page) -> None:
    assert_safe(page)
    for part in (
        "lasagne@0.1 computes something else than the reference",
        "What to do next",
        "Pooling gradient goes to every tied input",
        "replace MaxPool2DLayer",
        "no parameters were kept before step 12",
        "8,400",
        "[3, 12, 4, 9]",
        "one of 200,704 windows of pool2 chose another pixel",
        "Bitwise equal losses in every step: lasagne@0.1, caffe@1.0.0.",
        "3 images occur twice",
        "6 predictions differ by more than rounding",
        "model: cnn2",
    ):
        assert part in page.text, part
    assert set(page.figures()) == {"training", "accuracy", "times", "parts", "memory"}
    assert page.attributes("data-figure") == ["training", "accuracy", "times", "parts", "memory"]
    links = {str(value)[1:] for value in page.attributes("href")}
    assert links <= set(page.attributes("id"))


def test_every_engine_has_its_color_and_its_dash(page: Page) -> None:
    training = page.figures()["training"]["spec"]["vconcat"][0]["layer"]
    line = next(layer for layer in training if layer["mark"]["type"] == "line")["encoding"]
    assert line["color"]["scale"]["domain"] == list(LABELS)
    assert (
        len(
            {
                (index % 7, *map(tuple, [dash]))
                for index, dash in enumerate(line["strokeDash"]["scale"]["range"])
            }
        )
        == 7
    )


def test_hostile_names_and_errors_stay_text(data: ReportData) -> None:
    label = f"{HOSTILE}@1"
    runs = tuple(
        dataclasses.replace(
            run,
            label=label,
            engine=HOSTILE,
            version="1",
            error=HOSTILE,
            facts={HOSTILE: HOSTILE, "a": str(i)},
        )
        for i, run in enumerate(data.runs)
    )
    hostile = dataclasses.replace(
        data,
        job_name=HOSTILE,
        job_id=HOSTILE,
        error=HOSTILE,
        remarks=(HOSTILE,),
        document=HOSTILE,
        problems=(HOSTILE,),
        runs=runs,
        cross=tuple(dataclasses.replace(row, weights_of=HOSTILE) for row in data.cross),
    )

    def poison(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: poison(item) for name, item in value.items()}
        if isinstance(value, list):
            return [poison(item) for item in value]
        return f"{value}{HOSTILE}" if isinstance(value, str) and not value.startswith("run-") else value

    text = render_report(poison(sample_verdict(data)), hostile)
    page = Page(text)
    assert_safe(page)
    assert [tag for tag, attrs in page.elements if tag == "img" and "onerror" in attrs] == []
    assert "<!-- {{ 7*7 }}" in page.text
    assert "<!-- 49" not in page.text
    assert all(HOSTILE in name for name in page.figures()["training"]["data"]["trace"]["engine"]["names"])


def test_numbers_that_are_none(data: ReportData) -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 1e300])
    runs = []
    for run in data.runs:
        steps = {name: values.copy() for name, values in run.steps.items()}
        for name in steps:
            if name not in ("step", "samples"):
                steps[name][5:9] = odd
        steps["loss"][100:] = np.nan
        runs.append(
            dataclasses.replace(run, steps=steps, test_accuracy=float("nan"), train_seconds=float("inf"))
        )
    verdict = sample_verdict(data)
    row = verdict["engines"][1]["certificate"]["layers"][0]
    row |= {
        "ratio": "inf",
        "found": "nan",
        "expected": "-inf",
        "bound": None,
        "coordinates": None,
        "holds": False,
    }
    verdict["envelope"]["high"][3] = "inf"
    page = Page(render_report(verdict, dataclasses.replace(data, runs=tuple(runs))))
    assert_safe(page)
    assert "∞" in page.text
    assert "-∞" in page.text
    assert None in page.figures()["training"]["data"]["trace"]["loss"]


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_any_type_do_no_harm(data: ReportData, seed: int) -> None:
    small = dataclasses.replace(data, runs=data.runs[:2])
    verdict = sample_verdict(small)
    rng = np.random.default_rng(seed)
    for place, name in list(_places(verdict)):
        if rng.random() < 0.2:
            place[name] = [None, 3, -1.5, "x", [], {}, [1], [{}], True][rng.integers(9)]
    assert_safe(Page(render_report(verdict, small)))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        for name in list(value):
            yield from _places(value[name])
            yield value, name
    elif isinstance(value, list):
        for index, item in enumerate(value[:5]):
            yield from _places(item)
            yield value, index


def test_exact_checks_are_folded(data: ReportData) -> None:
    verdict = sample_verdict(data)
    for engine in verdict["engines"]:
        row = engine["certificate"]["layers"][-1]
        engine["certificate"]["layers"] += [
            {**row, "direction": "state", "subject": f"state{index}", "ratio": 0.0, "holds": True}
            for index in range(9)
        ]
    text = Page(render_report(verdict, data)).text
    assert "state 9 checks" in text


def test_a_job_without_a_verdict(data: ReportData) -> None:
    page = Page(render_report(None, data))
    assert_safe(page)
    assert "No verdict" in page.text
    assert "training" in page.figures()


def test_a_check_has_no_charts(data: ReportData) -> None:
    verdict = sample_verdict(data)
    verdict |= {"task": "check", "envelope": None, "pairs": []}
    for engine in verdict["engines"]:
        engine |= {"run_id": "", "free_run": None, "repeats": None}
    probes = tuple(
        RunData(f"run-{i}.probe", run.label, kind="probe", facts=run.facts) for i, run in enumerate(data.runs)
    )
    page = Page(render_report(verdict, ReportData(job_name="check", runs=probes)))
    assert_safe(page)
    assert page.figures() == {}
    assert "Every check at a glance" in page.text
    assert "Setups side by side" in page.text
    assert "Cross-evaluation" not in page.text


def test_two_runs_of_one_engine_are_told_apart(data: ReportData) -> None:
    first, second = data.runs[1], dataclasses.replace(data.runs[3], label=data.runs[1].label, run_id="other")
    verdict = sample_verdict(dataclasses.replace(data, runs=(data.runs[0], first)))
    one, other = verdict["engines"][1], copy.deepcopy(verdict["engines"][1])
    one["label"], other["label"], other["run_id"] = (
        "torch@2.13.0+cpu (before)",
        "torch@2.13.0+cpu (after)",
        "other",
    )
    verdict |= {"task": "compare", "engines": [other, one], "pairs": [], "envelope": None}
    verdict["reference"] = {"engine": "torch", "version": "2.13.0+cpu", "label": one["label"]}
    page = Page(render_report(verdict, ReportData(runs=(second, first))))
    drawn = page.figures()["training"]["data"]
    assert drawn["trace"]["engine"]["names"] == [one["label"], other["label"]]
    assert set(drawn["gaps"]["engine"]["codes"]) == {1}
    assert "(before) (reference)" in page.text


def test_a_cause_of_several_cases_is_told_once(data: ReportData) -> None:
    verdict = sample_verdict(data)
    engine = next(item for item in verdict["engines"] if item["causes"])
    again = {**engine["causes"][0], "case": "last-batch", "where": ["backward pool2", "backward pool9"]}
    engine["causes"].append(again)
    unknown = {**again, "ids": [], "title": "", "says": "", "restore": "", "unknown": True}
    engine["causes"] += [unknown, {**unknown, "case": "start"}]
    text = Page(render_report(verdict, data)).text
    assert text.count("Pooling gradient goes to every tied input") == 2
    assert "backward pool1, backward pool2, backward pool9 (probed: start, last-batch)" in text
    assert text.count("Cause unknown") == 4


def test_nothing_at_all() -> None:
    page = Page(render_report({}, ReportData()))
    assert_safe(page)
    assert "INCONCLUSIVE" in page.text


def test_perturbed_runs_are_not_drawn(data: ReportData) -> None:
    perturbed = dataclasses.replace(data.runs[1], run_id="perturbed", kind="envelope")
    names = {item["label"] for item in sample_verdict(data)["engines"]}
    more = dataclasses.replace(data, runs=(*data.runs, perturbed))
    for verdict in (None, sample_verdict(data)):
        drawn = Page(render_report(verdict, more)).figures()["training"]["data"]["trace"]["engine"]
        assert len(drawn["names"]) == len(names)


def test_seven_engines_of_150_000_steps() -> None:
    data = sample_data(150_000)
    peak = 149_000
    data.runs[3].steps["loss"][peak] = 77.0
    verdict = sample_verdict(data)
    begin = time.process_time()
    text = render_report(verdict, data)
    assert time.process_time() - begin < 20
    assert len(text.encode()) <= SIZE_LIMIT
    trace = Page(text).figures()["training"]["data"]["trace"]
    found = [step for step, loss in zip(trace["step"], trace["loss"], strict=True) if loss == 77.0]
    assert found == [peak]


def test_many_engines_of_a_deep_net_lose_detail_and_not_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = tuple(f"engine-{index}@1.{index}" for index in range(12))
    data = sample_data(50_000, labels)
    verdict = sample_verdict(data)
    for engine in verdict["engines"]:
        rows = engine["certificate"]["layers"]
        engine["certificate"]["layers"] = [
            {**row, "subject": f"block{index}.{row['subject']}"} for index in range(12) for row in rows
        ]
    text = render_report(verdict, data)
    assert len(text.encode()) <= SIZE_LIMIT
    assert "more are in verdict.json" in text


def test_the_file_is_replaced_whole(data: ReportData, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(path, sample_verdict(data), data)
    assert path.read_text(encoding="utf-8").lstrip().startswith("<!DOCTYPE html>")
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]


def test_layers_are_in_the_order_a_step_is_computed(data: ReportData) -> None:
    verdict = copy.deepcopy(sample_verdict(data))
    page = Page(render_report(verdict, data))
    begin = page.text.index("Every check at a glance")
    places = [
        page.text.index(part, begin)
        for part in ("input", "forward conv1", "forward dense2", "backward dense2", "backward pool1")
    ]
    assert places == sorted(places)
