"""A check that fails inside Caffe ends the process with its message as the last line, and only then."""

import os
import signal
import subprocess
import sys

import caffe
import numpy as np
import pytest
from caffe import _crosstrain
from oracle import RULES, engine, training

import crosstrain_caffe
from crosstrain_service.testing import ListLoop, cnn2, make_batches

PROGRAM = """
import sys
import caffe
from caffe import _crosstrain
with open(sys.argv[1], "w") as file:
    file.write(sys.argv[2])
print("building", flush=True)
caffe.Net(sys.argv[1], caffe.TEST)
"""
INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }'
BROKEN = {
    "pad_h_ < kernel_h_":
        'layer { name: "p" type: "Pooling" bottom: "x" top: "p" pooling_param { kernel_size: 2 pad: 2 } }',
    "Unknown layer type: Nothing": 'layer { name: "n" type: "Nothing" bottom: "x" top: "n" }',
    "Unknown bottom blob 'y'": 'layer { name: "r" type: "ReLU" bottom: "y" top: "r" }',
    "Failed to parse NetParameter": "layer { nonsense",
}


@pytest.mark.parametrize("message", BROKEN)
def test_message_is_the_last_line(message, tmp_path):
    variables = dict(os.environ, GLOG_minloglevel="2", GLOG_logtostderr="1")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "net.prototxt"), INPUT + BROKEN[message]]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=variables, text=True, check=False, **both)
    assert done.returncode == -signal.SIGABRT
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("Caffe stopped: ") and message in last and last.endswith(")")


def test_random_state_is_restored():
    caffe.set_random_seed(3)
    state = _crosstrain.random_state()
    caffe.set_random_seed(4)
    assert _crosstrain.random_state() != state
    _crosstrain.set_random_state(state)
    assert _crosstrain.random_state() == state
    with pytest.raises(ValueError):
        _crosstrain.set_random_state("1 2 three")
    assert _crosstrain.random_state() == state


def test_caffes_files_stay_in_the_folder_of_the_run(tmp_path, monkeypatch):
    from crosstrain_service.training import Execution

    variables = crosstrain_caffe.environment("caffe", Execution(intra_threads=2), str(tmp_path))
    assert variables["OPENBLAS_NUM_THREADS"] == "2" and variables["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setenv(crosstrain_caffe.WORK_FOLDER, variables[crosstrain_caffe.WORK_FOLDER])
    before = set(os.listdir(os.getcwd()))
    model = cnn2((1, 6, 6), 3, (2, 3), 4)
    built = engine(model, training(RULES["adam"]))
    built.train(ListLoop(make_batches(model, 1, 8)))
    state = built.state()
    built.load_state(state)
    names = {name for _, _, files in os.walk(tmp_path) for name in files}
    assert names == {"train.prototxt", "solver.prototxt"}
    built.close()
    assert not os.listdir(tmp_path / "caffe") and set(os.listdir(os.getcwd())) == before
    assert all(value.dtype == np.uint8 for value in state.values())
