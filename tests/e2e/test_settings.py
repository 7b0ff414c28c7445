"""Settings that people compare by: recorded in the fingerprint of a run, or refused before anything starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosstrain.results import write_results

from . import inputs
from .platform import Platform, one

Available = Callable[..., list[str]]
Data = tuple[Any, Any]
CORE = min(os.sched_getaffinity(0))


def test_settings_are_recorded(platform: Platform, available: Available, digits: Data, tmp_path: Path) -> None:
    engines = available("torch", "tensorflow")
    text = inputs.document(
        engines,
        repeats=2,
        runs_of={"tensorflow": 1},
        training={
            "epochs": 4,
            "max_steps": 30,
            "drop_last": True,
            # No loss falls by 100, so the second epoch is the first without an improvement.
            "early_stopping": {"validation_share": 0.25, "patience": 1, "min_delta": 100.0},
        },
        execution={
            "threads": 1, "inter_threads": 1, "cpu_affinity": [CORE], "prefetch": 2, "deterministic": True,
            "compiler": {"tensorflow": "xla"}, "checkpoint_every_steps": 3,
        },
    )  # fmt: skip
    record = platform.run(text, digits, "settings")
    order = [(run.engine, run.repeat) for run in record.training_runs()]
    assert order == [("torch", 0), ("tensorflow", 0), ("torch", 1)]
    expected = {
        "threads.intra": "1", "threads.inter": "1", "threads.affinity": str(CORE), "data.prefetch": "2",
        "maths.deterministic": "true", "maths.semantics": "canonical", "maths.mode": "parity",
        "maths.precision": "float32", "gpu.memory_growth": "false", "training.epochs": "4",
        "training.max_steps": "30", "training.batch_size": "16", "training.drop_last": "true",
        "training.early_stopping": "validation share 0.25, patience 1, min_delta 100.0",
    }  # fmt: skip
    for run in record.training_runs():
        assert {name: run.facts.get(name) for name in expected} == expected, run.label
        assert run.facts["maths.compiler"] == ("xla" if run.engine == "tensorflow" else "none")
        assert run.result is not None and run.result.stopped_early
        # 120 of 160 samples are left to train on: 7 whole batches of 16, two epochs.
        assert run.result.steps == run.last_step + 1 == 14
        assert all(epoch.HasField("validation_loss") for epoch in run.epochs)
    # Read back from the framework.
    torch = one(record, "torch").facts
    assert [torch[f"maths.{name}"] for name in ("intra_threads", "inter_threads")] == ["1", "1"]
    losses = [one(record, "torch", repeat).steps()["loss"] for repeat in (0, 1)]
    assert np.array_equal(*losses), "a deterministic repeat differs"
    written = write_results(platform.client, "settings", tmp_path / "out", record)
    facts = json.loads((written.folder / "fingerprints.json").read_text())
    assert sorted(item["run.repeat"] for item in facts.values()) == ["0", "0", "1"]


def test_nondeterministic_and_speed(platform: Platform, available: Available, digits: Data) -> None:
    text = inputs.document(
        available("torch"), mode="speed", training={"max_steps": 2}, execution={"deterministic": False}
    )
    run = one(platform.run(text, digits), "torch")
    assert (run.facts["maths.deterministic"], run.facts["maths.mode"]) == ("false", "speed")
    assert run.result is not None and run.result.steps == 2


REFUSED = [
    ("torch", {"compiler": "theano:fast_compile"}, "compiler.theano:fast_compile"),
    ("torch", {"compiler": "theano:fast_run"}, "compiler.theano:fast_run"),
    ("torch", {"compiler": "xla"}, "compiler.xla"),
    ("tensorflow", {"compiler": "torch.compile"}, "compiler.torch.compile"),
    ("torch", {"gpu_memory_growth": True}, "execution.gpu_memory_growth"),
    ("tensorflow", {"gpu_memory_growth": True}, "execution.gpu_memory_growth"),
    ("tensorflow", {"allow_tf32": True}, "execution.tf32"),
    ("reference", {"deterministic": False}, "execution.nondeterministic"),
    ("reference", {"inter_threads": 2}, "execution.inter_threads"),
    ("reference", {"compiler": "xla"}, "compiler.xla"),
]


@pytest.mark.parametrize(("engine", "settings", "feature"), REFUSED)
def test_what_an_engine_lacks_is_refused_before_anything_starts(
    platform: Platform, available: Available, digits: Data, engine: str, settings: dict[str, Any], feature: str
) -> None:
    available(engine)
    supported = {
        item.name
        for registered in platform.client.list_engines()
        if registered.description.name == engine
        for item in registered.description.features
        if item.support in (1, 2)
    }
    if feature in supported:
        pytest.skip(f"{engine} has {feature} on this machine")
    error = platform.refused(inputs.document([engine], execution=settings), digits)
    assert (error.reason, error.code, error.field) == ("UNSUPPORTED", "FAILED_PRECONDITION", "engines[0]")
    assert f"engine {engine}@" in error.message
    assert feature in error.message


def test_the_engine_that_lacks_something_stops_the_whole_job(
    platform: Platform, available: Available, digits: Data
) -> None:
    engines = available("torch", "reference")
    error = platform.refused(inputs.document(engines, semantics="native"), digits)
    assert (error.reason, error.field) == ("UNSUPPORTED", "engines[1]")
    assert "engine reference@1 does not support: semantics.native" in error.message
    error = platform.refused(inputs.document(["torch", "reference[data=2]"]), digits)
    assert error.reason == "UNSUPPORTED" and "engine reference@1 does not support: parallel.data" in error.message
    error = platform.refused(inputs.document(["torch"], devices={"kind": "cuda", "index": 900}), digits)
    assert error.reason == "UNSUPPORTED" and "no device cuda:900" in error.message


def test_cores_that_do_not_exist_are_named(platform: Platform, available: Available, digits: Data) -> None:
    job = platform.client.create_job(
        inputs.document(available("reference"), execution={"cpu_affinity": [4000]}), *digits
    )
    list(platform.client.watch_job(job.job_id))
    error = platform.client.get_job(job.job_id).runs[0].run.error
    assert "cpu_affinity" in error.field or "cpu_affinity" in error.message
    assert "4000" in error.message


def test_native_semantics(platform: Platform, available: Available, digits: Data) -> None:
    engines = available("torch", "tensorflow")
    text = inputs.document(
        engines, semantics="native", training={"optimizer": {"adam": {"learning_rate": 0.01}}, "max_steps": 5}
    )
    record = platform.run(text, digits)
    for engine in engines:
        run = one(record, engine)
        assert run.facts["maths.semantics"] == "native"
        losses = run.steps()["loss"]
        assert len(losses) == 5 and np.isfinite(losses).all()
    # The first loss is before any update, so conventions of the optimizers do not show in it yet.
    first = [one(record, engine).steps()["loss"][0] for engine in engines]
    assert first[0] == pytest.approx(first[1], abs=1e-5)
