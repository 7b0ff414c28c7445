"""What must be set before TensorFlow is imported, and what needs a process of its own."""

import json
import os
import subprocess
import sys

import oracle
import pytest
from test_training import SETTINGS, SMALL

import crosstrain_tensorflow
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.training import Execution

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = """
import json, os, sys
from crosstrain_service.training import Execution
import crosstrain_tensorflow
name, run_dir, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
execution = Execution(**settings)
os.environ.update(crosstrain_tensorflow.environment(name, execution, run_dir))
sys.path[:0] = [{here!r}, os.path.join({here!r}, "..", "..", "reference", "src")]
import oracle
from crosstrain_service.testing import ListLoop, cnn2, make_batches
model = cnn2((1, 8, 8), 3, (2, 3), 4, dropout=0.5)
engine = oracle.engine_class(name)(model, oracle.training(oracle.RULES["momentum"]), execution)
engine.load_parameters(oracle.parameters(model))
batches = make_batches(model, 5, 6)
batches[4] = oracle.Batch(4, batches[4].x[:2], batches[4].labels[:2], 0.05, {{
    name: mask[:2] for name, mask in batches[4].masks.items()}})
loop = ListLoop(batches)
engine.train(loop)
digest = {{name: value.tobytes().hex() for name, value in engine.parameters().items()}}
print(json.dumps({{"losses": loop.losses, "parameters": digest, "facts": engine.fingerprint(),
                  "logits": engine.predict(batches[0].x).tolist()}}))
"""


def run(name, tmp_path, **settings):
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(here=HERE), name, str(tmp_path), json.dumps(settings)],
        capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", sorted(crosstrain_tensorflow.ENGINES))
def test_xla_computes_the_same_deterministically(name, tmp_path):
    plain = run(name, tmp_path)
    first, second = (run(name, tmp_path, compiler="xla") for _ in range(2))
    assert first["facts"]["compiler"] == "xla" and first["facts"]["op_determinism"] == "false"
    if name == "keras-tensorflow":
        assert first["facts"]["keras.jit_compile"] == "true"
    assert first["parameters"] == second["parameters"] and first["losses"] == second["losses"]
    assert first["losses"] == pytest.approx(plain["losses"], rel=1e-5)


@pytest.mark.parametrize("name", sorted(crosstrain_tensorflow.ENGINES))
def test_threads_and_determinism_are_taken(name, tmp_path):
    result = run(name, tmp_path, intra_threads=2, inter_threads=3, deterministic=False, mode="speed")
    facts = result["facts"]
    assert (facts["threads.intra"], facts["threads.inter"]) == ("2", "3")
    assert facts["deterministic"] == facts["op_determinism"] == "false"
    assert facts["env.TF_DETERMINISTIC_OPS"] == "0"


def test_a_users_keras_configuration_is_not_read(tmp_path):
    home = tmp_path / "home"
    (home / ".keras").mkdir(parents=True)
    (home / ".keras" / "keras.json").write_text(
        '{"floatx": "float16", "image_data_format": "channels_first", "epsilon": 0.1, "backend": "tensorflow"}')
    program = PROGRAM.replace("import json", "import os; os.environ['HOME'] = %r\nimport json" % str(home), 1)
    process = subprocess.run(
        [sys.executable, "-c", program.format(here=HERE), "keras-tensorflow", str(tmp_path), "{}"],
        capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    facts = json.loads(process.stdout.splitlines()[-1])["facts"]
    assert facts["keras.image_data_format"] == "channels_last"


def test_environment():
    hidden = crosstrain_tensorflow.environment("tensorflow", Execution(intra_threads=3), "folder")
    assert hidden["CUDA_VISIBLE_DEVICES"] == "" and hidden["OMP_NUM_THREADS"] == "3"
    assert hidden["TF_DETERMINISTIC_OPS"] == "1"
    assert "NVIDIA_TF32_OVERRIDE" not in hidden
    cuda = crosstrain_tensorflow.environment("tensorflow", Execution(device="cuda", device_index=2), "folder")
    assert cuda["CUDA_VISIBLE_DEVICES"] == "2" and cuda["NVIDIA_TF32_OVERRIDE"] == "0"
    assert cuda["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    for value in list(hidden.values()) + list(cuda.values()):
        assert isinstance(value, str)


def test_device_index_counts_among_the_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7")
    for index, expected in ((0, "5"), (1, "7")):
        found = crosstrain_tensorflow.environment("tensorflow", Execution(device="cuda", device_index=index), "folder")
        assert found["CUDA_VISIBLE_DEVICES"] == expected


@pytest.mark.parametrize("settings", [{"intra_threads": 7}, {"deterministic": False}, {"device": "cuda"}])
def test_other_settings_in_the_same_process_are_refused(kind, settings):
    kind(SMALL, SETTINGS, Execution())
    with pytest.raises(CrosstrainError) as caught:
        kind(SMALL, SETTINGS, Execution(**settings))
    assert caught.value.reason == "ENVIRONMENT"


def test_deterministic_max_pools_with_xla_on_a_gpu_are_refused(kind):
    with pytest.raises(CrosstrainError) as caught:
        kind(SMALL, SETTINGS, Execution(device="cuda", compiler="xla"))
    assert caught.value.reason == "UNSUPPORTED"


def test_package_offers_both_engines():
    assert sorted(crosstrain_tensorflow.ENGINES) == ["keras-tensorflow", "tensorflow"]
    for name in crosstrain_tensorflow.ENGINES:
        assert oracle.engine_class(name).name == name
