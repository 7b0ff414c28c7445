"""Which cases a probe has, how large they are, and which further runs a verdict needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosstrain.artifacts import ArtifactStore
from crosstrain.jobs.probes import ProbePlanner, largest_change, probe_batch
from crosstrain.judging.following import Trained, fastest_certified
from crosstrain.judging.native import with_canonical_constants
from crosstrain.judging.reading import Recorded
from crosstrain.spec import build_model, learning_rates, parse_document, train_spec
from crosstrain_protos.v1 import coordinator_pb2, data_pb2, run_pb2, training_pb2
from doubles.world import npy

JOB = """
name: j
model: %s
training: {epochs: 2, batch_size: %d, optimizer: {sgd: {learning_rate: 0.1}}%s}
engines: [torch]
%s
"""
CNN = "{layers: [{convolution: {channels: 2, kernel: 3}}, %s{flatten: {}}, {dense: {units: classes}}]}"


def cases(
    folder: Path, samples: int, batch: int, training: str = "", more: str = "", model: str = CNN % ""
) -> dict[str, run_pb2.ProbeCase]:
    store = ArtifactStore(str(folder))
    pixels = np.random.RandomState(0).randint(0, 256, (samples, 1, 8, 8)).astype(np.uint8)
    data = data_pb2.Dataset(
        pixels_digest=store.put(npy(pixels)), labels_digest=store.put(npy(np.arange(samples) % 3)), samples=samples,
        input_shape=(1, 8, 8), classes=3, divisor=255.0,
    )  # fmt: skip
    spec = parse_document(JOB % (model, batch, training, more))
    network = build_model(spec, (1, 8, 8), 3)
    rates = learning_rates(spec, samples)
    base = train_spec(spec, network, data, data, store.put(npy(rates)), "0" * 64, "torch")
    found = ProbePlanner(store, spec, network).cases(base, rates)
    for case in found:
        stored = store.array(case.training.learning_rates_digest, "rates")
        assert len(stored) == case.training.max_steps
        assert store.array(case.train.pixels_digest, "pixels").shape[0] == case.train.samples
    return {case.case_id: case for case in found}


def test_a_constant_rate_and_whole_batches_need_one_case(tmp_path: Path) -> None:
    found = cases(tmp_path, 32, 8)
    assert list(found) == ["start"]
    start = found["start"]
    assert (list(start.steps), start.training.batch_size, start.train.samples) == ([0, 1, 2], 8, 32)
    assert start.test.samples == 32


def test_a_smaller_last_batch_is_probed(tmp_path: Path) -> None:
    last = cases(tmp_path, 35, 8)["last-batch"]
    assert (last.train.samples, last.training.batch_size, list(last.steps)) == (11, 8, [0, 1])
    assert "last-batch" not in cases(tmp_path, 35, 8, ", drop_last: true")
    assert "last-batch" not in cases(tmp_path, 35, 8, ", max_steps: 4")


def test_the_largest_change_of_the_rate_is_probed(tmp_path: Path) -> None:
    schedule = ", schedule: {warmup_steps: 4, decay: {step: {factor: 0.1, every_steps: 2}}}"
    changed = cases(tmp_path, 32, 8, schedule)["rate-change"]
    assert list(changed.steps) == [1, 2]
    rates = ArtifactStore(str(tmp_path)).array(changed.training.learning_rates_digest, "rates")
    assert rates.tolist() == pytest.approx([0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("rates", "expected"),
    [([0.1], None), ([0.1, 0.1], None), ([0.1, 0.2, 0.1], (0.1, 0.2)), ([1.0, 0.5, 0.05, 0.04], (0.5, 0.05))],
)
def test_largest_change(rates: list[float], expected: tuple[float, float] | None) -> None:
    assert largest_change(np.array(rates)) == expected


def test_batch_statistics_are_taken_over_little_data(tmp_path: Path) -> None:
    normalised = CNN % "{batch_norm: {epsilon: 1.0e-5}}, "
    start = cases(tmp_path, 400, 8, model=normalised)["start"]
    assert start.train.samples == 24
    assert start.training.epochs == 1


def test_the_batch_is_cut_to_the_room_for_a_record(tmp_path: Path) -> None:
    spec = parse_document(JOB % ("cnn2", 64, "", ""))
    model = build_model(spec, (1, 28, 28), 10)
    assert 8 <= probe_batch(model, 64, 16) <= 12
    assert probe_batch(model, 64, 1) == 2
    assert probe_batch(model, 1, 1) == 1
    assert probe_batch(model, 64, 4096) == 64


def test_early_stopping_holds_nothing_out_of_a_probe(tmp_path: Path) -> None:
    start = cases(tmp_path, 40, 8, ", early_stopping: {validation_share: 0.2}")["start"]
    assert not start.training.HasField("early_stopping")


def trained(engine: str, seconds: list[float], certified: bool) -> Trained:
    record = coordinator_pb2.JobRun(run=run_pb2.Run(run_id=engine, engine=engine))
    return Trained(record, Recorded(seconds=np.array(seconds)), certified, not certified)


def test_the_envelope_is_run_by_the_fastest_engine_whose_checks_hold() -> None:
    runs = [
        trained("reference", [9.0, 3.0, 3.0], True),
        trained("quick", [0.1, 0.1, 0.1], False),
        trained("torch", [9.0, 1.0, 1.0], True),
    ]
    chosen = fastest_certified(runs)
    assert chosen is not None and chosen.run_id == "torch"
    assert fastest_certified(runs[1:2]) is None


def test_native_jobs_are_compared_with_canonical_constants() -> None:
    message = training_pb2.Training()
    message.optimizer.adam.beta1 = 0.5
    filled: Any = with_canonical_constants(message).optimizer.adam
    assert (filled.beta1, filled.beta2, filled.epsilon) == (0.5, 0.999, 1e-8)
    assert not message.optimizer.adam.HasField("beta2")
