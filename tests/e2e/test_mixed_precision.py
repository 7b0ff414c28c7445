"""A job in mixed precision of real engines: two ranks against one, with the envelope of half precision."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crosstrain.results import write_results

from . import inputs
from .platform import Platform

Available = Callable[..., list[str]]


def test_two_ranks_compute_in_bfloat16_what_one_does(
    platform: Platform, available: Available, digits: tuple[Any, Any], tmp_path: Path
) -> None:
    available("torch")
    text = inputs.document(
        ["torch", "torch[data=2]"],
        training={"epochs": 3},
        execution={"precision": "mixed_bfloat16"},
        verdict={"envelope": 4},
    )
    results = write_results(platform.client, "mixed", tmp_path / "out", platform.run(text, digits, "mixed"))
    found = results.verdict
    assert found is not None
    assert found["verdict"] == "ROUNDING", found["sentence"]
    assert [engine["certificate"]["failed"] for engine in found["engines"]] == [0, 0]
    assert [engine["skipped_updates"] for engine in found["engines"]] == [0, 0]
    told = json.loads((results.folder / "fingerprints.json").read_text())
    assert {facts["maths.precision"] for facts in told.values()} == {"mixed_bfloat16"}
    # The runs do differ, by more than float32 would let them: it is the envelope that accounts for it.
    apart = found["engines"][1]["free_run"]
    assert found["envelope"]["runs"] == 4
    assert 1e-4 < float(apart["max_difference"]) and apart["explained"] and apart["flip"] is None
    assert "every layer, from the engine's own inputs, within what rounding" in found["parity"]
    page = (results.folder / "report.html").read_text()
    assert "precision mixed_bfloat16" in page and "layers are computed in bfloat16" in page
    assert "precision mixed_bfloat16" in (results.folder / "run.log").read_text()
