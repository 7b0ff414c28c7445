"""What the package offers without a network: names, environment, features, errors."""

import os
import subprocess
import sys

import numpy as np
import pytest

from crosstrain_keras_theano import ENGINES, environment
from crosstrain_service.capabilities import FEATURES, UNSUPPORTED
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.training import Execution
from support import NAMES, batches, build, engine_class, tiny, train, training


def test_the_package_imports_no_framework():
    code = (
        "import sys, crosstrain_keras_theano as package; package.environment('lasagne', "
        "__import__('crosstrain_service.training').training.Execution(), '/run'); "
        "print(sorted({'theano', 'keras', 'lasagne', 'scipy'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout
    assert output.decode().strip() == "[]"


def _flags(variables):
    return dict(item.split("=", 1) for item in variables["THEANO_FLAGS"].split(","))


def test_environment_of_a_cpu_run():
    variables = environment("keras-theano", Execution(intra_threads=3, compiler="theano:fast_compile"), "/run/work")
    flags = _flags(variables)
    assert variables["CUDA_VISIBLE_DEVICES"] == "" and variables["KERAS_BACKEND"] == "theano"
    assert variables["OMP_NUM_THREADS"] == variables["OPENBLAS_NUM_THREADS"] == "3"
    assert variables["THEANORC"] == os.devnull and variables["KERAS_HOME"].startswith("/run/work")
    assert flags["base_compiledir"].startswith("/run/work/")
    assert (flags["device"], flags["floatX"], flags["openmp"]) == ("cpu", "float32", "True")
    assert (flags["optimizer"], flags["deterministic"]) == ("fast_compile", "more")
    again = _flags(environment("keras-theano", Execution(), "/run/work"))
    assert again["base_compiledir"] != flags["base_compiledir"], "an attempt never meets the lock of another"
    assert (again["optimizer"], again["openmp"]) == ("fast_run", "False")


def test_environment_of_a_gpu_run():
    variables = environment("lasagne", Execution(device="cuda", device_index=1, precision="float64"), "/run")
    flags = _flags(variables)
    assert "CUDA_VISIBLE_DEVICES" not in variables
    assert (flags["device"], flags["force_device"], flags["floatX"]) == ("cuda1", "True", "float64")
    assert flags["dnn.conv.algo_bwd_filter"] == "deterministic"
    free = _flags(environment("lasagne", Execution(device="cuda", deterministic=False), "/run"))
    assert "dnn.conv.algo_bwd_filter" not in free and "deterministic" not in free


def test_environment_refuses_what_theano_would_misread():
    with pytest.raises(ValueError, match="comma"):
        environment("lasagne", Execution(), "/run,1")
    with pytest.raises(KeyError):
        environment("torch", Execution(), "/run")


@pytest.mark.parametrize("name", NAMES)
def test_features(name):
    kind = engine_class(name)
    info = kind.info()
    assert info.name == kind.name == name and name in ENGINES
    assert set(info.features) == set(FEATURES), "every feature is declared, supported or not"
    for feature, (support, note) in info.features.items():
        assert note or support not in (UNSUPPORTED, "emulated"), feature
    for feature in (
        "semantics.native",
        "precision.float64",
        "compiler.theano:fast_compile",
        "probe",
        "layer.batch_norm",
    ):
        assert info.features[feature].support != UNSUPPORTED
    assert {"theano", "numpy", "blas"} < set(info.libraries)


@pytest.mark.parametrize("name", NAMES)
def test_fingerprint_and_precision(name):
    model = tiny()
    engine = build(name, model, precision="float32")
    assert engine.fingerprint()["theano.floatX"] == "float32"
    assert {value.dtype.name for value in engine.parameters().values()} == {"float32"}
    assert engine.predict(batches(model, dtype=np.float32)[0].x).dtype == np.float32
    wide = build(name, model)
    assert wide.fingerprint()["theano.floatX"] == "float64"
    assert {value.dtype.name for value in wide.parameters().values()} == {"float64"}


@pytest.mark.parametrize("name", NAMES)
def test_recording_changes_nothing(name):
    model = tiny()
    engine = build(name, model)
    steps = batches(model)
    before = engine.state()
    engine.intermediates(steps[0])
    engine.predict(steps[0].x)
    after = engine.state()
    assert before.keys() == after.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(value, after[key])
    train(engine, steps[:1])
    assert any((value != engine.state()[key]).any() for key, value in before.items())


@pytest.mark.parametrize("name", NAMES)
def test_errors_are_clear(name):
    model = tiny()
    with pytest.raises(CrosstrainError) as caught:
        build(name, model, device="cuda")
    assert caught.value.reason == "ENVIRONMENT"
    engine = build(name, model)
    with pytest.raises(CrosstrainError, match="does not belong"):
        engine.load_state({"parameter/other": np.zeros(1)})
    with pytest.raises(CrosstrainError, match="Theano failed while predicting") as caught:
        engine.predict(np.zeros((2, 3)))
    assert caught.value.reason == "ENGINE_FAILED" and "/" not in caught.value.message


def test_a_missing_compiler_is_an_error(monkeypatch):
    theano = pytest.importorskip("theano")
    monkeypatch.setattr(theano.config, "cxx", "", raising=False)
    with pytest.raises(CrosstrainError, match="C\\+\\+ compiler"):
        build("lasagne", tiny())


@pytest.mark.parametrize("name", NAMES)
def test_an_error_of_the_loop_passes_unchanged(name):
    class Stop(Exception):
        pass

    from crosstrain_service.testing import ListLoop

    class Loop(ListLoop):
        def step_done(self, loss, correct=None, sync_seconds=0.0, copy_seconds=0.0):
            super().step_done(loss)
            if self.step == 2:
                raise Stop()

    model = tiny()
    loop = Loop(batches(model))
    with pytest.raises(Stop):
        build(name, model, training()).train(loop)
    assert loop.step == 2
