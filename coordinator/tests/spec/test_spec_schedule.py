"""Learning rates against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from crosstrain.spec import SpecError, learning_rates, parse_document, total_steps, training_rows

JOB = """name: x
model: cnn2
engines: [torch]
training:
  epochs: %d
  batch_size: %d
  optimizer: {sgd: {learning_rate: %s}}
  schedule: %s
"""


def rates(schedule: str, epochs: int = 1, batch: int = 10, rate: float = 1.0, rows: int = 100) -> list[float]:
    return learning_rates(parse_document(JOB % (epochs, batch, rate, schedule)), rows).tolist()


def test_constant() -> None:
    assert rates("{}", rate=0.05) == [0.05] * 10


def test_linear_warm_up_reaches_the_rate_at_its_last_step() -> None:
    assert rates("{warmup_steps: 4}") == [0.25, 0.5, 0.75] + [1.0] * 7


def test_warm_up_longer_than_the_job_never_reaches_the_rate() -> None:
    assert rates("{warmup_steps: 20}") == [(step + 1) / 20 for step in range(10)]


@pytest.mark.parametrize(("batch", "base", "factor"), [(64, 256, 0.25), (512, 256, 2.0), (64, 32, 2.0)])
def test_linear_scaling_with_the_batch(batch: int, base: int, factor: float) -> None:
    found = rates(f"{{scale_with_batch: true, base_batch_size: {base}}}", batch=batch, rate=0.1, rows=1000)
    assert found == [pytest.approx(0.1 * factor, rel=1e-15)] * math.ceil(1000 / batch)


def test_the_base_batch_is_256_and_scaling_is_off_unless_asked_for() -> None:
    assert rates("{scale_with_batch: true}", batch=64, rows=64) == [0.25]
    assert rates("{base_batch_size: 32}", batch=64, rows=64) == [1.0]


def test_step_decay_counts_from_the_end_of_the_warm_up() -> None:
    found = rates("{warmup_steps: 2, decay: {step: {factor: 0.5, every_steps: 3}}}")
    assert found == [0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_step_decay_in_epochs() -> None:
    assert rates("{decay: {step: {factor: 0.1, every_epochs: 1}}}", epochs=3, batch=50) == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01], rel=1e-15
    )


def test_exponential_decay() -> None:
    found = rates("{decay: {exponential: {factor: 0.25, every_steps: 2}}}", rows=50)
    assert found == pytest.approx([1, 0.5, 0.25, 0.125, 0.0625], rel=1e-15)


def test_cosine_decay_reaches_half_in_the_middle_and_stays_above_zero() -> None:
    found = rates("{decay: {cosine: {}}}", rows=40)
    assert found == pytest.approx([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2], rel=1e-14)
    long = rates("{decay: {cosine: {}}}", rows=1_000_000, batch=1)
    assert min(long) > 0


def test_cosine_decay_with_warm_up_and_final_share() -> None:
    found = rates("{warmup_steps: 2, decay: {cosine: {final: 0.2}}}", rows=60)
    expected = [0.5, 1.0] + [0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * t / 4)) for t in range(4)]
    assert found == pytest.approx(expected, rel=1e-14)


def test_type_and_length() -> None:
    spec = parse_document(JOB % (3, 64, 0.1, "{}"))
    found = learning_rates(spec, 4000)
    assert (found.dtype, found.shape) == (np.float64, (189,))
    assert total_steps(spec, 4000) == 189


def test_max_steps_cuts_and_the_cosine_ends_there() -> None:
    text = JOB % (3, 10, 1.0, "{decay: {cosine: {}}}")
    found = learning_rates(parse_document(text.replace("epochs: 3", "epochs: 3\n  max_steps: 4")), 100)
    assert found.tolist() == rates("{decay: {cosine: {}}}", rows=40)


def test_drop_last() -> None:
    text = (JOB % (2, 30, 1.0, "{}")).replace("epochs: 2", "epochs: 2\n  drop_last: true")
    assert total_steps(parse_document(text), 100) == 6
    assert total_steps(parse_document(text.replace("true", "false")), 100) == 8


def test_training_rows_leave_out_the_validation_share() -> None:
    text = JOB % (1, 10, 1.0, "{}") + "  early_stopping: {validation_share: 0.1}\n"
    assert training_rows(parse_document(text), 4000) == 3600
    assert training_rows(parse_document(text), 3) == 2
    assert training_rows(parse_document(JOB % (1, 10, 1.0, "{}")), 4000) == 4000


@pytest.mark.parametrize(
    ("change", "rows", "field", "part"),
    [
        ({}, 31, "training.batch_size", "32 is more than the 31 training samples"),
        ({"epochs: 1": "epochs: 1\n  drop_last: true"}, 10, "training.batch_size", "no step would be left"),
        ({"epochs: 1": "epochs: 16000000"}, 1000, "training.epochs", "at most 10000000"),
        ({"{}": "{decay: {exponential: {factor: 1.0e-300, every_steps: 1}}}"}, 320, "training.schedule", "step 2 is 0"),
    ],
)
def test_refused(change: dict[str, str], rows: int, field: str, part: str) -> None:
    text = JOB % (1, 32, 1.0, "{}")
    for old, new in change.items():
        text = text.replace(old, new)
    with pytest.raises(SpecError) as caught:
        learning_rates(parse_document(text), rows)
    (violation,) = caught.value.violations
    assert violation.field == field
    assert violation.line is not None
    assert part in violation.message
