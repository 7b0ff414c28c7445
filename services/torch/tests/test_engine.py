"""The engine as a whole: features, environment, resuming, evaluation, probes, native semantics."""

import dataclasses
import subprocess
import sys

import numpy as np
import oracle
import pytest
import torch

from crosstrain_service import weights
from crosstrain_service.capabilities import EXACT, FEATURES, UNSUPPORTED
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import (
    BatchNorm,
    Dense,
    Flatten,
    Model,
    Relu,
)
from crosstrain_service.testing import DIGITS_LOSSES, ListLoop, cnn2, digits_batches, make_batches
from crosstrain_service.training import Execution, Rule, WeightDecay
from crosstrain_torch import ENGINES, environment
from crosstrain_torch.engine import TorchEngine

RATES = [0.05, 0.05, 0.1, 0.02, 0.02, 0.3]


def steps(model, count=6, size=5):
    found = make_batches(model, count, size)
    return [dataclasses.replace(batch, learning_rate=rate) for batch, rate in zip(found, RATES)]


def assert_same(first, second):
    assert set(first) == set(second)
    for name, value in first.items():
        assert value.dtype == second[name].dtype, name
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_every_feature_is_declared():
    info = TorchEngine.info()
    assert info.name == "torch" and info.version.startswith("2.")
    assert set(info.features) == set(FEATURES)
    assert all(feature.note for feature in info.features.values() if feature.support != EXACT)
    if not torch.backends.cuda.is_built():
        assert info.features["device.cuda"].support == UNSUPPORTED
        assert "no CUDA" in info.features["device.cuda"].note
    assert {"torch", "numpy"} <= set(info.libraries)


def test_cuda_is_offered_where_the_build_and_the_machine_have_it(monkeypatch):
    from crosstrain_torch import device

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    for found, support in (([], UNSUPPORTED), (["a GPU"], EXACT)):
        monkeypatch.setattr(device, "gpus", lambda found=found: found)
        assert TorchEngine.info().features["device.cuda"].support == support


def test_the_package_itself_does_not_import_pytorch():
    code = "import sys, crosstrain_torch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert ENGINES == {"torch": "crosstrain_torch.engine:TorchEngine"}


def test_environment():
    cpu = environment("torch", Execution(intra_threads=3), "/run")
    assert cpu["OMP_NUM_THREADS"] == cpu["MKL_NUM_THREADS"] == "3"
    assert cpu["CUDA_VISIBLE_DEVICES"] == ""
    gpu = environment("torch", Execution(device="cuda", compiler="torch.compile"), "/run")
    assert "CUDA_VISIBLE_DEVICES" not in gpu
    assert gpu["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" and gpu["NVIDIA_TF32_OVERRIDE"] == "0"
    assert gpu["TORCHINDUCTOR_CACHE_DIR"].startswith("/run")
    tf32 = environment("torch", Execution(device="cuda", allow_tf32=True), "/run")
    assert "NVIDIA_TF32_OVERRIDE" not in tf32
    with pytest.raises(KeyError):
        environment("tensorflow", Execution(), "/run")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(CrosstrainError, match="no CUDA device 0") as caught:
        TorchEngine(cnn2((1, 8, 8), 4, (2, 2), 4), oracle.training(Rule("sgd")), Execution(device="cuda"))
    assert caught.value.reason == "ENVIRONMENT"


def test_execution_settings_reach_pytorch():
    model, settings = cnn2((1, 8, 8), 4, (2, 2), 4), oracle.training(oracle.RULES["sgd"])
    try:
        free = oracle.engine(model, settings, deterministic=False, intra_threads=2)
        assert not torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 2
        assert free.fingerprint()["deterministic"] == "false" and free.fingerprint()["intra_threads"] == "2"
    finally:
        strict = oracle.engine(model, settings, precision="float64")
    assert torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 1
    assert strict.fingerprint()["precision"] == "float64"
    assert all(value.dtype == np.float64 for value in strict.parameters().values())
    code = (
        "from crosstrain_torch.device import configure; from crosstrain_service.training import Execution;"
        "configure(Execution(inter_threads=3)); import torch; assert torch.get_num_interop_threads() == 3"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reference_job(digits):
    """The published losses of cnn2 on digits, and the parameters after step 0."""
    batches = digits_batches(digits, 10)
    model, settings = cnn2(), oracle.training(oracle.RULES["momentum"], (0.05,) * 10)
    initial = weights.initial_parameters(model, seed=0)
    built = TorchEngine(model, settings, Execution())
    built.load_parameters(initial)
    loop = ListLoop(batches[:1])
    built.train(loop)

    exact = oracle.reference(model, settings)
    exact.load_parameters(initial)
    exact.train(ListLoop([oracle.cast(batches[0], np.float64)]))
    expected = exact.parameters()
    for name, value in built.parameters().items():
        assert np.abs(value - expected[name]).max() < 1e-6, name

    rest = ListLoop(batches[1:])
    built.train(rest)
    assert np.abs(np.array(loop.losses + rest.losses) - DIGITS_LOSSES[:10]).max() < 1e-6


@pytest.mark.parametrize("semantics", ["canonical", "native"])
@pytest.mark.parametrize("rule", oracle.RULES)
def test_resuming_is_bit_exact(rule, semantics):
    model = oracle.everything()
    settings = oracle.training(oracle.RULES[rule], RATES, weight_decay=WeightDecay(0.01), clip_norm=0.5)
    batches = steps(model)
    whole = oracle.engine(model, settings, semantics=semantics)
    loop = ListLoop(batches)
    whole.train(loop)

    first = oracle.engine(model, settings, semantics=semantics)
    begin = ListLoop(batches[:3])
    first.train(begin)
    saved, _ = weights.from_bytes(weights.to_bytes(first.state()))
    first.train(ListLoop(batches[3:5]))
    second = TorchEngine(model, settings, Execution(semantics=semantics))
    second.load_state(saved)
    end = ListLoop(batches[3:])
    second.train(end)
    assert begin.losses + end.losses == loop.losses
    assert_same(whole.parameters(), second.parameters())
    assert_same(whole.optimizer_state(), second.optimizer_state())
    assert_same(whole.state(), second.state())


def test_state_before_the_first_step_can_be_resumed():
    model, settings = oracle.everything(), oracle.training(oracle.RULES["adam"])
    first, second = oracle.engine(model, settings), TorchEngine(model, settings, Execution())
    second.load_state(first.state())
    batches = steps(model)
    first.train(ListLoop(batches))
    second.train(ListLoop(batches))
    assert_same(first.state(), second.state())


@pytest.mark.parametrize("semantics", ["canonical", "native"])
def test_looking_inside_changes_nothing(semantics):
    model, settings = oracle.everything(), oracle.training(oracle.RULES["momentum"])
    looked = oracle.engine(model, settings, semantics=semantics)
    batches = steps(model)
    looked.train(ListLoop(batches[:1]))
    before = looked.state()
    inside = looked.intermediates(batches[1])
    assert_same(before, looked.state())
    assert list(inside.outputs) == [layer.name for layer in model.layers]
    loop = ListLoop(batches[1:2])
    looked.train(loop)
    # The step draws the same dropout as the look inside did.
    assert loop.losses == [inside.loss]


def test_inputs_are_not_copied_and_not_changed():
    from crosstrain_torch.device import to_tensor

    values = np.ones((2, 3), np.float32)
    shared = to_tensor(values, torch.device("cpu"), torch.float32)
    assert shared.data_ptr() == values.ctypes.data
    values.flags.writeable = False
    assert to_tensor(values, torch.device("cpu"), torch.float32).data_ptr() != values.ctypes.data
    model = oracle.everything()
    batches = steps(model, 1)
    kept = batches[0].x.copy()
    built = oracle.engine(model, oracle.training(oracle.RULES["sgd"]))
    built.train(ListLoop(batches))
    built.intermediates(batches[0])
    np.testing.assert_array_equal(batches[0].x, kept)


def test_evaluation_uses_loaded_statistics():
    model, settings = oracle.everything(), oracle.training(oracle.RULES["momentum"])
    built = oracle.engine(model, settings, precision="float64")
    x = make_batches(model, 1, 6)[0].x.astype(np.float64)
    reference = oracle.reference(model, settings)
    expected = reference.batch_statistics(x)
    seen = built.batch_statistics(x)
    assert set(seen) == {"norm1", "norm2"}
    for name, (mean, variance) in seen.items():
        np.testing.assert_allclose(mean, expected[name][0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(variance, expected[name][1], rtol=1e-12, atol=1e-14)
    given = {}
    for name, (mean, variance) in seen.items():
        given.update({name + ".running_mean": mean, name + ".running_var": variance})
    built.load_statistics(given)
    reference.load_statistics(given)
    assert_same(built.statistics(), given)
    other = make_batches(model, 1, 3, seed=9)[0].x.astype(np.float64)
    np.testing.assert_allclose(built.predict(other), reference.predict(other), rtol=1e-11)
    built.train(ListLoop([oracle.cast(batch, np.float64) for batch in steps(model, 2)]))
    assert_same(built.statistics(), given)


def test_predicting_between_epochs_leaves_training_alone():
    model, settings = oracle.everything(), oracle.training(oracle.RULES["momentum"])
    batches = steps(model)
    plain, looked = oracle.engine(model, settings), oracle.engine(model, settings)
    plain.train(ListLoop(batches, per_epoch=2))

    class Looking(ListLoop):
        def epochs(self):
            for epoch in super().epochs():
                yield epoch
                looked.predict(batches[0].x)
                looked.batch_statistics(batches[0].x)

    looked.train(Looking(batches, per_epoch=2))
    assert_same(plain.parameters(), looked.parameters())


def test_native_semantics_are_pytorchs_own():
    model = oracle.everything()
    settings = oracle.training(oracle.RULES["momentum"])
    batch = steps(model, 1)[0]
    native = oracle.engine(model, settings, semantics="native")
    canonical = oracle.engine(model, settings)
    inside = native.intermediates(batch)
    # The dropout is PyTorch's own and the platform's masks are ignored; up to there both agree.
    np.testing.assert_array_equal(inside.outputs["relu2"], canonical.intermediates(batch).outputs["relu2"])
    kept = inside.outputs["relu2"] > 0
    shares = inside.outputs["dropout1"][kept] / inside.outputs["relu2"][kept]
    assert set(np.round(shares, 5)) == {0.0, 2.0}
    # Batch norm: the new value is weighted 0.1 and the variance is unbiased.
    x = inside.outputs["conv1"].astype(np.float64)
    native.train(ListLoop([batch]))
    found = native.statistics()
    mean, unbiased = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3), ddof=1)
    np.testing.assert_allclose(found["norm1.running_mean"], 0.1 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["norm1.running_var"], 0.9 + 0.1 * unbiased, rtol=1e-4)
    canonical.train(ListLoop([batch]))
    assert np.all(canonical.statistics()["norm1.running_mean"] == 0)


def test_a_given_batch_norm_momentum_weights_the_old_value():
    layers = (Flatten("flatten"), BatchNorm("norm", 1e-3, 0.75), Dense("dense", 4))
    model = Model("norm", (1, 2, 2), 4, layers).validate()
    native = oracle.engine(model, oracle.training(Rule("sgd")), semantics="native")
    batch = make_batches(model, 1, 5)[0]
    native.train(ListLoop([batch]))
    mean = batch.x.reshape(5, 4).mean(axis=0)
    np.testing.assert_allclose(native.statistics()["norm.running_mean"], 0.25 * mean, rtol=1e-6)


def test_native_dropout_follows_the_seed():
    model, batch = oracle.everything(), steps(oracle.everything(), 1)[0]

    def outputs(seed):
        settings = dataclasses.replace(oracle.training(oracle.RULES["sgd"]), seed=seed)
        return oracle.engine(model, settings, semantics="native").intermediates(batch).outputs["dropout1"]

    np.testing.assert_array_equal(outputs(5), outputs(5))
    assert np.any(outputs(5) != outputs(6))


def test_canonical_dropout_needs_its_mask():
    model = oracle.everything()
    batch = steps(model, 1)[0]
    batch.masks.clear()
    with pytest.raises(ValueError, match="dropout1"):
        oracle.engine(model, oracle.training(oracle.RULES["sgd"])).train(ListLoop([batch]))


def test_layer_names_that_pytorch_could_not_take():
    names = ["training", "forward", "a.b", "weight"]
    layers = (
        Flatten(names[0]), Dense(names[1], 5), Relu(names[2]), Dense(names[3], 4),
    )  # fmt: skip
    model = Model("names", (1, 3, 3), 4, layers).validate()
    settings = oracle.training(oracle.RULES["momentum"])
    built = oracle.engine(model, settings, precision="float64")
    oracle.assert_steps_equal(built, model, settings, make_batches(model, 2, 3), 1e-12)
    built.load_state(built.state())
