"""What work needs is derived from it alone, and what is lacking is named."""

import numpy as np
import pytest

from crosstrain_service import capabilities
from crosstrain_service.capabilities import EXACT, FEATURES, UNSUPPORTED, Feature
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import Convolution, Dense, Flatten, LocalResponseNorm, Model, Pool
from crosstrain_service.training import EarlyStopping, Execution, Rule, Training, WeightDecay


def training(rule=None, rates=(0.1, 0.1), **changes):
    return Training(1, 1, 0, rule or Rule("sgd", momentum=0.0, nesterov=False), np.array(rates), **changes)


@pytest.mark.parametrize("value, needed", [
    (training(), {"optimizer.sgd"}),
    (training(Rule("sgd", momentum=0.9, nesterov=False)), {"optimizer.sgd", "optimizer.sgd.momentum"}),
    (training(Rule("sgd", momentum=0.9, nesterov=True)), {"optimizer.sgd", "optimizer.sgd.nesterov"}),
    (training(Rule("adam")), {"optimizer.adam"}),
    (training(rates=(0.1, 0.2)), {"optimizer.sgd", "schedule.per_step"}),
    (training(rates=()), {"optimizer.sgd"}),
    (training(weight_decay=WeightDecay(0.1)), {"optimizer.sgd", "decay.l2"}),
    (training(weight_decay=WeightDecay(0.1, decoupled=True)), {"optimizer.sgd", "decay.decoupled"}),
    (training(weight_decay=WeightDecay(0.0)), {"optimizer.sgd"}),
    (training(clip_norm=1.0, early_stopping=EarlyStopping(0.1, 1)), {"optimizer.sgd", "clip.global_norm"}),
])
def test_needs_of_training(value, needed):
    assert capabilities.features_of_training(value) == needed


def test_schedule_that_changes_late_is_seen():
    rates = np.full((1 << 20) + 1, 0.1)
    assert "schedule.per_step" not in capabilities.features_of_training(training(rates=rates))
    rates[-1] = 0.2
    assert "schedule.per_step" in capabilities.features_of_training(training(rates=rates))


@pytest.mark.parametrize("layer, needed", [
    (Convolution("c", 1, (2,), (1,), (0,), (0,)), {"layer.convolution1d"}),
    (Convolution("c", 1, (2, 2), (1, 1), (0, 1), (1, 1)),
     {"layer.convolution2d", "layer.convolution.asymmetric_padding"}),
    (Pool("p", "max", (2, 2), (2, 2), (0, 0), (0, 0)), {"layer.pool2d", "layer.pool.max"}),
    (Pool("p", "max", (2,), (2,), (0,), (1,), "ceil"),
     {"layer.pool1d", "layer.pool.max", "layer.pool.padding", "layer.pool.asymmetric_padding", "layer.pool.ceil"}),
    (Pool("p", "average", (2,), (2,), (1,), (1,), "floor", True),
     {"layer.pool1d", "layer.pool.average", "layer.pool.padding", "layer.pool.average.include_pad"}),
    (LocalResponseNorm("l", 3, 1.0, 0.75, 1.0), {"layer.local_response_norm"}),
    (LocalResponseNorm("l", 3, 1.0, 0.75, 1.0, "within_channel"), {"layer.local_response_norm.within_channel"}),
])
def test_needs_of_layers(layer, needed):
    model = Model("m", (1, 8, 8), 4, (layer, Flatten("f"), Dense("d", 4)))
    assert capabilities.features_of_model(model) == needed | {"layer.flatten", "layer.dense"}


def test_needs_of_execution():
    assert capabilities.features_of_execution(Execution()) == {
        "semantics.canonical", "device.cpu", "execution.deterministic"}
    everything = Execution("native", "speed", "float64", "cuda", 0, 2, 3, (0,), 2, False, "xla", True, True, 5)
    assert capabilities.features_of_execution(everything) == {
        "semantics.native", "device.cuda", "precision.float64", "execution.nondeterministic",
        "execution.inter_threads", "execution.cpu_affinity", "execution.prefetch", "execution.gpu_memory_growth",
        "execution.tf32", "compiler.xla"}


def test_everything_needed_is_in_the_closed_list():
    with pytest.raises(ValueError, match="layer.magic"):
        capabilities.declare(["layer.magic"])
    assert set(capabilities.COMMON) <= set(FEATURES)


def test_what_lacks_is_named_with_its_note():
    table = capabilities.declare(["probe"], unsupported={"precision.float64": "not there"})
    assert table["probe"] == Feature(EXACT) and table["precision.float64"].support == UNSUPPORTED
    capabilities.require("engine", table, {"probe", "execution.prefetch"})
    with pytest.raises(CrosstrainError) as caught:
        capabilities.require("engine", table, {"probe", "precision.float64", "layer.dense"})
    assert caught.value.message == (
        "engine engine does not support: layer.dense; precision.float64 (not there)")
