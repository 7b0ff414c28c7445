"""``crosstrain import caffe`` and ``crosstrain export caffe``: files in, files out, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 1 dim: 4 dim: 4 } } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 2 kernel_size: 3 } }
layer { name: "ip" type: "InnerProduct" bottom: "c" top: "ip" inner_product_param { num_output: 3 } }
"""
SOLVER = 'base_lr: 0.1 lr_policy: "fixed" momentum: 0.5 max_iter: 20'


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "net.prototxt", tmp_path / "solver.prototxt"]
    for path, text in zip(paths, (NET, SOLVER), strict=True):
        path.write_text(text)
    return paths


def test_out_and_in_again(cli: Cli, files: list[Path], tmp_path: Path) -> None:
    import numpy as np

    from crosstrain_service import weights

    ran = cli("import", "caffe", *files, "--output", tmp_path / "one", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["layers"] == ["c", "ip_flatten", "ip"] and ran.json["files"] == ["job.yaml", "model.yaml"]
    shapes = {"c.weight": (2, 1, 3, 3), "c.bias": (2,), "ip.weight": (3, 8), "ip.bias": (3,)}
    arrays = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    (tmp_path / "w.safetensors").write_bytes(weights.to_bytes(arrays))
    shape = ("--input-shape", "1,4,4", "--classes", "3", "--output", tmp_path / "two")
    ran = cli("export", "caffe", tmp_path / "one" / "job.yaml", tmp_path / "w.safetensors", *shape)
    assert ran.code == 0, ran.err
    exported = [tmp_path / "two" / "deploy.prototxt", files[1], tmp_path / "two" / "weights.caffemodel"]
    ran = cli("import", "caffe", *exported, "--output", tmp_path / "three")
    assert ran.code == 0, ran.err
    found, _ = weights.from_bytes((tmp_path / "three" / "weights.safetensors").read_bytes())
    assert found.keys() == arrays.keys() and all((found[name] == 0.5).all() for name in found)
    assert "initial_weights" in (tmp_path / "three" / "job.yaml").read_text()


def test_a_layer_that_cannot_be_taken_is_named(cli: Cli, files: list[Path], tmp_path: Path) -> None:
    files[0].write_text(NET.replace('"Convolution"', '"Python"'))
    ran = cli("import", "caffe", *files, "--output", tmp_path / "out")
    assert ran.code == 3 and "'c' (Python)" in ran.err and not (tmp_path / "out").exists()


def test_files_are_not_overwritten(cli: Cli, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "job.yaml").write_text("mine")
    ran = cli("import", "caffe", *files, "--output", tmp_path / "out")
    assert ran.code == 3 and "there already" in ran.err
    assert (tmp_path / "out" / "job.yaml").read_text() == "mine"


def test_wrong_arguments(cli: Cli, files: list[Path], tmp_path: Path) -> None:
    assert cli("import", "caffe", *files, "--input-shape", "28x28").code == 64
    assert cli("import", "caffe", tmp_path / "absent", files[1], "--output", tmp_path / "out").code == 3


MODEL = """
name: small
layers:
  - convolution: {name: c, channels: 2, kernel: 3}
  - flatten: {}
  - dense: {name: out, units: classes}
"""


@pytest.fixture
def trained(tmp_path: Path) -> list[Path]:
    """A model file and weights for it."""
    import numpy as np

    from crosstrain_service import weights

    shapes = {"c.weight": (2, 1, 3, 3), "c.bias": (2,), "out.weight": (3, 8), "out.bias": (3,)}
    arrays = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    paths = [tmp_path / "model.yaml", tmp_path / "w.safetensors"]
    paths[0].write_text(MODEL)
    paths[1].write_bytes(weights.to_bytes(arrays))
    return paths


SHAPE = ("--input-shape", "1,4,4", "--classes", "3")


@pytest.mark.parametrize(("tool", "weights"), [("torch", "weights.safetensors"), ("keras", "weights.npz")])
def test_python_sources(cli: Cli, trained: list[Path], tmp_path: Path, tool: str, weights: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: j\nmodel: model.yaml\ndata: {train: t.csv, divisor: 128}\nengines: [torch]\n"
        "training: {optimizer: {sgd: {learning_rate: 0.1}}}\n"
    )
    for number, (model, *options) in enumerate([[job], [trained[0]], [trained[0], "--divisor", "128"]]):
        folder = tmp_path / f"out{number}"
        ran = cli("export", tool, model, trained[1], folder, *SHAPE, *options, "--json")
        assert ran.code == 0, ran.err
        assert ran.json["files"] == sorted(["network.py", weights]) and (folder / weights).is_file()
        source = (folder / "network.py").read_text()
        assert ("DIVISOR = 128.0" in source) == (number != 1) and "def load(" in source
    for wrong in ("0", "nan", "inf"):
        assert cli("export", tool, *trained, tmp_path / "none", *SHAPE, "--divisor", wrong).code == 64
    assert not (tmp_path / "none").exists()
    ran = cli("export", tool, trained[0], trained[1], tmp_path / "out0", *SHAPE)
    assert ran.code == 3 and "there already" in ran.err


def test_exports_name_file_line_and_field(cli: Cli, trained: list[Path], tmp_path: Path) -> None:
    trained[0].write_text(MODEL.replace("channels: 2", "channels: none"))
    ran = cli("export", "torch", *trained, tmp_path / "out", *SHAPE)
    assert ran.code == 3 and "model.yaml:4: model.layers[0].convolution.channels: must" in ran.err
    trained[0].write_text(MODEL.replace("channels: 2", "channels: 4"))
    ran = cli("export", "keras", *trained, tmp_path / "out", *SHAPE)
    assert ran.code == 3 and "c.weight" in ran.err and not (tmp_path / "out").exists()
