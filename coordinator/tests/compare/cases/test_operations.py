"""Reports of people who met differences in operations and layouts, each as a small input: what must be said of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare.causes import data_faults
from compare.causes.layer_faults import ChannelsLast, FlippedKernel, as_kind, at_zero, layers, with_fields
from compare.problems import MOMENTUM, conv, pool, problem

from crosstrain.compare.causes import Cause, explain
from crosstrain.compare.certificate import Certificate, Problem, certify
from crosstrain.compare.testing import Simulated
from crosstrain_reference import Convolution, Flatten, Network, Pool, Relu
from crosstrain_service import model as plain

DELTA = np.zeros((1, 1, 7, 7), np.float32)
DELTA[0, 0, 3, 3] = 1.0
COUNTING = {"conv.weight": np.arange(1.0, 10.0).reshape(1, 1, 3, 3), "conv.bias": 0.0}
IDENTITY = {"conv.weight": 1.0, "conv.bias": 0.0}


def judged(of: Problem, engine: Any) -> tuple[Certificate, tuple[Cause, ...]]:
    """The certificate of an engine, and the causes of what fails."""
    records = engine(of).records()
    certificate = certify(of, records)
    return certificate, explain(of, records, certificate)


def named(causes: tuple[Cause, ...]) -> list[tuple[str, ...]]:
    return [cause.ids for cause in causes]


def first(certificate: Certificate) -> tuple[str, str, int]:
    check = certificate.first_failure
    assert check is not None
    return check.kind, check.subject, check.step


def line(values: list[float], *layers_: Any, **settings: Any) -> Problem:
    """One row of numbers through a convolution that copies it, then the layers."""
    pixels = np.array(values, np.float32).reshape(1, 1, 1, -1)
    return problem((1, 1, len(values)), [conv("conv", 1, 1), *layers_], pixels=pixels, initial=IDENTITY, batch=1,
                   steps=1, **settings)  # fmt: skip


def test_01_convolution_gives_rotated_outputs() -> None:
    delta = problem((1, 7, 7), [conv("conv", 1, 3, 1, 1)], pixels=DELTA, initial=COUNTING, batch=1, steps=1)
    certificate, causes = judged(delta, layers(Convolution, lambda x: as_kind(x, FlippedKernel)))
    assert first(certificate) == ("forward", "conv", 0)
    assert named(causes) == [("convolution.kernel_flipped",)]
    worst = causes[0].worst
    assert worst.found is not None and worst.expected is not None
    assert abs(worst.found - worst.expected) == pytest.approx(8)


class FlippedTensors(Simulated):
    """Kernels flipped when assigned, applied as they are."""

    def initial(self) -> dict[str, np.ndarray]:
        return {name: value[..., ::-1, ::-1] if value.ndim == 4 else value for name, value in super().initial().items()}


@pytest.mark.parametrize("assigned", [False, True], ids=["loaded from a file", "assigned"])
def test_02_same_weights_other_predictions(assigned: bool) -> None:
    two = problem((1, 7, 7), [conv("conv1", 2, 3), plain.Relu("relu"), conv("conv2", 2, 3)])
    engine = FlippedTensors if assigned else layers(Convolution, lambda x: as_kind(x, FlippedKernel))
    certificate, causes = judged(two, engine)
    assert named(causes) == [("convolution.kernel_flipped",)]
    assert first(certificate)[0] == ("initial weights" if assigned else "forward")


def test_03_one_of_two_convolution_classes_flips() -> None:
    two = problem((1, 7, 7), [conv("conv1", 2, 3), plain.Relu("relu"), conv("conv2", 2, 3)])
    engine = layers(Convolution, lambda x: as_kind(x, FlippedKernel) if x.name == "conv2" else x)
    _, causes = judged(two, engine)
    assert named(causes) == [("convolution.kernel_flipped",)]
    assert causes[0].where == ("forward conv2", "backward conv2", "gradient conv2.weight")


def test_04_same_pooling_starts_one_earlier() -> None:
    row = line([1, 2, 3, 4], pool("pool", "max", (1, 2), (1, 2)))
    certificate, causes = judged(row, layers(Pool, lambda x: with_fields(x, pad_begin=(0, 1))))
    assert named(causes)[0] == ("pool.origin_shifted",) and len(causes) == 1
    check = certificate.first_failure
    assert check is not None and (check.subject, check.found, check.expected) in (("pool", 1, 2), ("pool", 3, 4))


def test_05_same_padding_with_stride_two() -> None:
    random = np.random.RandomState(0)
    large = problem(
        (1, 224, 224), [conv("conv", 1, 7, 2, 2, 3)], pixels=random.uniform(0, 1, (1, 1, 224, 224)), batch=1, steps=1)
    certificate, causes = judged(large, layers(Convolution, lambda x: with_fields(x, pad_begin=(3, 3))))
    assert first(certificate)[:2] == ("forward", "conv")
    assert named(causes) == [("convolution.padding_shifted",)]


def test_06_pool_output_56_where_55_was_expected() -> None:
    wide = problem((1, 112, 112), [pool("pool", "max", 3, 2)], batch=1, samples=1, steps=1)

    class RoundsUp(Simulated):
        def records(self) -> dict[int, dict[str, np.ndarray]]:
            found = super().records()
            up = with_fields(self.network().layers[0], round_mode="ceil")
            found[0]["output/pool"] = up.forward(found[0]["input"], {})[0]
            return found

    certificate, causes = judged(wide, RoundsUp)
    check = certificate.first_failure
    assert check is not None and check.detail == ": shape (1, 1, 56, 56), expected (1, 1, 55, 55)"
    assert named(causes) == [("pool.ceil_for_floor",)]


def test_07_max_pool_gradient_at_ties() -> None:
    row = line([1, 2, 2, 2], pool("pool", "max", (1, 4), (1, 4)))

    class EveryMaximum(Simulated):
        def network(self) -> Network:
            class Tied(Pool):
                def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
                    return np.where(trace.x == trace.x.max(), dy.reshape(-1, 1, 1, 1), np.float32(0)), {}

            return Network([as_kind(x, Tied) if type(x) is Pool else x for x in super().network().layers])

    certificate, causes = judged(row, EveryMaximum)
    assert first(certificate)[:2] == ("backward", "pool")
    assert named(causes) == [("pool.ties_all",)]
    assert (certificate.ties, certificate.zeros) == (2, 0)


def test_08_relu_gradient_at_zero() -> None:
    blank = problem((1, 4, 4), [conv("conv", 2, 3, 1, 1), plain.Relu("relu")], biases=False, steps=1,
                    pixels=np.zeros((3, 1, 4, 4)))  # fmt: skip
    certificate, causes = judged(blank, layers(Relu, lambda x: at_zero(0.5)(x.name)))
    assert first(certificate)[:2] == ("backward", "relu")
    assert named(causes) == [("relu.half_at_zero",)]
    assert (certificate.ties, certificate.zeros) == (0, 3 * 2 * 16)


@pytest.mark.parametrize(("counts", "name"), [(True, "divisor_counts_padding"), (False, "divisor_excludes_padding")])
def test_09_average_pool_and_padding(counts: bool, name: str) -> None:
    ones = problem(
        (1, 4, 4), [conv("conv", 1, 1), pool("pool", "average", 3, 1, 1, include=not counts)], initial=IDENTITY,
        pixels=np.ones((1, 1, 4, 4)), batch=1, steps=1)  # fmt: skip
    certificate, causes = judged(ones, layers(Pool, lambda x: with_fields(x, count_include_pad=counts)))
    assert named(causes) == [(f"pool.{name}",)]
    worst = certificate.first_failure
    assert worst is not None and {round(worst.found or 0, 4), round(worst.expected or 0, 4)} <= {0.4444, 0.6667, 1.0}


@pytest.mark.parametrize("channels", [1, 2])
def test_10_flatten_order_shows_with_two_channels(channels: int) -> None:
    images = problem((channels, 4, 4), [plain.Flatten("flatten"), plain.Dense("logits", 3)])
    certificate, causes = judged(images, layers(Flatten, lambda x: ChannelsLast(x.name)))
    assert certificate.holds == (channels == 1)
    assert named(causes) == ([] if channels == 1 else [("dense.rows_permuted_hwc",)])


def test_11_only_evaluation_differs() -> None:
    certificate, causes = judged(data_faults.NORM, data_faults.averaged(0.9))
    assert {check.step for check in certificate.failed} == {-1}
    assert named(causes) == [("batch_norm.running_statistics",)]


def test_12_cross_entropy_of_large_logits() -> None:
    one = problem(
        (3, 1, 1), [plain.Flatten("flatten"), plain.Dense("logits", 3)], batch=1, steps=1, labels=[0],
        pixels=np.array([14.4, 50.1, 3.5]).reshape(1, 3, 1, 1), initial={"logits.weight": np.eye(3), "logits.bias": 0})
    certificate, causes = judged(one, data_faults.Clipped)
    check = certificate.first_failure
    assert check is not None and check.kind == "loss"
    assert (check.found, check.expected) == (pytest.approx(16.118, abs=1e-3), pytest.approx(35.7, abs=1e-3))
    assert named(causes) == [("loss.clipped_probabilities",)]


def test_13_softmax_twice() -> None:
    certificate, causes = judged(data_faults.SQUARE, data_faults.Twice)
    assert first(certificate)[0] == "loss"
    assert named(causes) == [("loss.double_softmax",)]


def test_batch_norm_of_the_same_layer_is_not_blamed_in_training() -> None:
    certificate, causes = judged(data_faults.NORM, data_faults.BatchByBatch)
    assert [check.kind for check in certificate.failed] == ["evaluation"]
    assert named(causes) == [("evaluation.batch_statistics",)]


def test_a_fault_spoils_only_what_it_touches() -> None:
    deep = problem(
        (1, 8, 8), [conv("conv1", 2, 3, 1, 1), plain.Relu("relu1"), pool("pool1", "max", 2, 2),
                    conv("conv2", 3, 3, 1, 1), plain.Relu("relu2"), pool("pool2", "average", 2, 2)],
        rule=MOMENTUM, test=True)  # fmt: skip
    _, causes = judged(deep, layers(Convolution, lambda x: as_kind(x, FlippedKernel) if x.name == "conv1" else x))
    assert named(causes) == [("convolution.kernel_flipped",)]
    assert causes[0].where == ("forward conv1", "gradient conv1.weight", "evaluation logits")
