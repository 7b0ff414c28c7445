"""The page in headless Chromium: charts are drawn, in both themes, on a phone, and nothing complains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crosstrain.report import write_report
from doubles.report_sample import sample_data, sample_verdict

pytestmark = pytest.mark.timeout(240)

#: Pixels of a canvas that are not transparent.
_INKED = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
  return count;
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = sample_data()
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, sample_verdict(data), data)
    return path


@contextmanager
def opened(chromium: Any, path: Path, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """The page once its charts are drawn, and what the browser complained of or fetched."""
    context = chromium.new_context(offline=True, **options)
    page = context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: told.append(f"error: {error}"))
    page.on("dialog", lambda dialog: told.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: told.append(request.url) if _fetched(request.url, path) else None)
    page.goto(path.as_uri())
    if options.get("java_script_enabled", True):
        page.wait_for_selector("html[data-ready]", timeout=120_000)
    yield page, told
    context.close()


def _fetched(url: str, path: Path) -> bool:
    return not url.startswith("data:") and url.split("#")[0] != path.as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (360, 740)])
def test_charts_are_drawn_and_nothing_complains(
    chromium: Any, report: Path, theme: str, size: tuple[int, int]
) -> None:
    viewport = {"width": size[0], "height": size[1]}
    with opened(chromium, report, viewport=viewport, color_scheme=theme) as (page, told):
        assert told == []
        assert page.locator("[data-figure]").count() == 5
        assert page.locator("[data-figure].drawn").count() == 5
        assert page.locator(".live canvas").evaluate(_INKED) > 5_000
        for name in ("accuracy", "times", "parts", "memory"):
            marks = page.locator(f"[data-figure={name}] .live svg path")
            assert marks.count() > 7, name
        assert page.locator(".picture:visible").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        widths = page.evaluate(
            "[...document.querySelectorAll('.live canvas, .live svg')].map(e => e.clientWidth)"
        )
        assert all(0 < width <= size[0] for width in widths)
        box = page.locator(".sentence").bounding_box()
        assert box["y"] + box["height"] < size[1]
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 22)"
        assert dark == (theme == "dark")


def test_theme_and_width_may_change(chromium: Any, report: Path) -> None:
    with opened(chromium, report, viewport={"width": 1280, "height": 900}) as (page, told):
        label = "[data-figure=times] .live svg text"
        page.wait_for_selector(label)
        light = page.locator(label).first.get_attribute("fill")
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(
            "before => document.querySelector('[data-figure=times] .live svg text').getAttribute('fill') !== before",
            arg=light,
        )
        page.set_viewport_size({"width": 400, "height": 800})
        page.wait_for_function("document.querySelector('.live canvas').clientWidth <= 400")
        assert told == []


def test_an_engine_is_singled_out_by_keyboard(chromium: Any, report: Path) -> None:
    with opened(chromium, report, viewport={"width": 1280, "height": 900}) as (page, told):
        button = page.locator(".legend button", has_text="lasagne")
        before = page.locator(".live canvas").evaluate("canvas => canvas.toDataURL()")
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        page.wait_for_function(
            "before => document.querySelector('.live canvas').toDataURL() !== before", arg=before
        )
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "false"
        toggle = page.locator("#log-steps")
        toggle.focus()
        page.keyboard.press("Enter")
        page.wait_for_function(
            "before => document.querySelector('.live canvas').toDataURL() !== before", arg=before
        )
        assert toggle.get_attribute("aria-pressed") == "true"
        assert told == []


def test_pointing_at_a_curve_tells_its_values(chromium: Any, report: Path) -> None:
    with opened(chromium, report, viewport={"width": 1280, "height": 900}) as (page, told):
        canvas = page.locator(".live canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 100)
        page.mouse.move(box["x"] + 320, box["y"] + 110)
        page.wait_for_selector("#tip:not([hidden])")
        text = page.locator("#tip").inner_text()
        assert "Engine" in text
        assert "Loss" in text
        assert told == []


def test_details_open_from_a_link(chromium: Any, report: Path) -> None:
    with opened(chromium, report) as (page, told):
        page.locator(".engines a", has_text="torch").click()
        opened_engine = page.locator("details.engine[open]", has_text="torch@2.13.0+cpu")
        assert opened_engine.locator("table.checks").first.is_visible()
        assert told == []


def test_without_script_and_on_paper_there_are_pictures(chromium: Any, report: Path) -> None:
    with opened(chromium, report, java_script_enabled=False) as (page, told):
        pictures = page.locator(".picture:visible")
        assert pictures.count() == 5
        for index in range(5):
            assert pictures.nth(index).evaluate("image => image.complete && image.naturalWidth > 100")
        assert told == []
    with opened(chromium, report) as (page, _):
        page.emulate_media(media="print")
        assert page.locator(".picture:visible").count() == 5
        assert page.locator(".live canvas:visible").count() == 0


def test_a_chart_that_cannot_be_drawn_keeps_its_picture(chromium: Any, report: Path, tmp_path: Path) -> None:
    broken = tmp_path / "report.html"
    text = report.read_text(encoding="utf-8")
    assert text.count('"times":{"spec":{"layer":') == 1
    broken.write_text(text.replace('"times":{"spec":{"layer":', '"times":{"spec":{"odd":'), encoding="utf-8")
    with opened(chromium, broken) as (page, told):
        assert len(told) == 1 and told[0].startswith("error: chart times")
        assert page.locator("[data-figure=times] .picture").is_visible()
        assert page.locator("[data-figure=parts].drawn").count() == 1


def test_hostile_names_run_nothing(chromium: Any, tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"><svg onload=alert(3)>"
    data = sample_data()
    runs = tuple(
        dataclasses.replace(run, engine=hostile, label=f"{hostile}@{i}") for i, run in enumerate(data.runs)
    )
    verdict = sample_verdict(data)
    for index, engine in enumerate(verdict["engines"]):
        engine |= {"label": f"{hostile}@{index}", "sentence": hostile}
    verdict |= {"sentence": hostile, "job_name": hostile, "next_steps": [hostile]}
    path = tmp_path / "report.html"
    write_report(path, verdict, dataclasses.replace(data, runs=runs, document=hostile, problems=(hostile,)))
    with opened(chromium, path) as (page, told):
        assert told == []
        assert page.locator("h1").inner_text() == hostile
        assert page.locator("[data-figure].drawn").count() == 5


def test_losses_that_are_not_finite_are_drawn_around(chromium: Any, tmp_path: Path) -> None:
    data = sample_data()
    data.runs[2].steps["loss"][50:] = float("nan")
    data.runs[3].steps["loss"][:] = float("inf")
    path = tmp_path / "report.html"
    write_report(path, None, data)
    with opened(chromium, path) as (page, told):
        assert told == []
        assert page.locator(".live canvas").evaluate(_INKED) > 5_000
