"""Saved weights evaluated in every engine."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import inputs
from .platform import Platform, one

Available = Callable[..., list[str]]


@pytest.fixture(scope="module")
def trained(platform: Platform, available: Available, digits: tuple[Any, Any]) -> str:
    """Digest of weights that PyTorch has trained."""
    engines = available("torch")
    result = one(platform.run(inputs.document(engines, training={"epochs": 2}), digits), "torch").result
    assert result is not None
    return result.weights_digest


def test_all_engines_predict_the_same_classes(
    platform: Platform, available: Available, digits: tuple[Any, Any], trained: str
) -> None:
    engines = available()
    text = inputs.document(engines, task="evaluate", weights=[trained])
    record = platform.run(text, (None, digits[1]))
    logits = {}
    for run in record.evaluation_runs():
        (found,) = run.evaluations
        assert (found.weights_digest, found.samples) == (trained, inputs.TEST)
        logits[run.engine] = np.load(io.BytesIO(platform.client.read(found.logits_digest)), allow_pickle=False)
        labels = np.load(io.BytesIO(platform.client.read(digits[1].labels_digest)), allow_pickle=False)
        assert found.correct == int((logits[run.engine].argmax(axis=1) == labels).sum())
    assert set(logits) == set(engines)
    for engine in engines:
        assert logits[engine].shape == (inputs.TEST, 10)
        np.testing.assert_array_equal(logits[engine].argmax(axis=1), logits["reference"].argmax(axis=1))
        np.testing.assert_allclose(logits[engine], logits["reference"], rtol=0, atol=1e-5)


def test_a_file_of_weights_on_the_command_line(
    platform: Platform, available: Available, files: tuple[Path, Path], trained: str, tmp_path: Path
) -> None:
    available("reference")
    platform.client.download(trained, tmp_path / "final.safetensors")
    path = tmp_path / "job.yaml"
    job = json.loads(inputs.document(["reference"]))
    path.write_text(json.dumps({**job, "data": {"train": str(files[0]), "test": str(files[1])}}))
    out = tmp_path / "out"
    ran = platform.crosstrain("evaluate", path, "--weights", tmp_path / "final.safetensors", "--results", out)
    assert ran.code == 0, ran.err
    assert f"reference@1  {trained[:12]}" in ran.out
    header, row = (out / "evaluation.csv").read_text().splitlines()
    found = dict(zip(header.split(","), row.split(","), strict=True))
    assert (found["engine"], found["weights_digest"], found["images"]) == ("reference", trained, "60")
    # Weights of a network with other layers.
    job["model"] = {"name": "other", "layers": [{"flatten": {}}, {"dense": {"units": "classes"}}]}
    path.write_text(json.dumps({**job, "data": {"test": str(files[1])}}))
    ran = platform.crosstrain("evaluate", path, "--weights", trained, "--json")
    assert ran.code == 3
    assert ran.json["error"]["reason"] == "INVALID_WEIGHTS"
    assert ran.json["error"]["field"] == "weights[0]"
