"""Wide images, what is said about data, and whether every framework computes from the same samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from crosstrain.data import ImportOptions, import_dataset, sample_digests

from . import inputs
from .platform import Platform, one

Available = Callable[..., list[str]]


def test_wide_images(platform: Platform, available: Available) -> None:
    """224x224 images, 50,176 pixel columns, from CSV to a trained network."""
    random = np.random.RandomState(1)
    pixels = random.randint(0, 256, (6, 224 * 224))
    path = inputs.write_csv(platform.data_dir / "wide.csv", np.arange(6) % 2, pixels)
    model = {
        "name": "wide",
        "layers": [
            {"convolution": {"channels": 2, "kernel": 7, "stride": 4}},
            {"relu": {}},
            {"max_pool": {"kernel": 5}},
            {"flatten": {}},
            {"dense": {"units": "classes"}},
        ],
    }
    text = inputs.document(available("torch", "reference"), model=model, training={"epochs": 1, "batch_size": 3})
    data = platform.send(path)
    assert data[0] is not None and list(data[0].input_shape) == [1, 224, 224]
    record = platform.run(text, data)
    losses = [one(record, engine).steps()["loss"] for engine in ("torch", "reference")]
    assert [len(loss) for loss in losses] == [2, 2]
    assert np.abs(losses[0] - losses[1]).max() <= 1e-6


def test_what_is_wrong_with_the_data_reaches_the_user(
    platform: Platform, available: Available, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """Cases of reports: classes that a split lacks after sorting, and duplicates in and across the splits."""
    available("reference")
    train = np.loadtxt(files[0], delimiter=",", skiprows=1, dtype=np.int64)
    test = np.loadtxt(files[1], delimiter=",", skiprows=1, dtype=np.int64)
    train = np.concatenate([train, train[:3]])
    test = np.concatenate([test[test[:, 0] != 9], train[:2]])
    folder = platform.data_dir / "remarkable"
    folder.mkdir(exist_ok=True)
    inputs.write_csv(folder / "train.csv", train[:, 0], train[:, 1:])
    inputs.write_csv(folder / "test.csv", test[:, 0], test[:, 1:])
    expected = (
        "test has no sample of 1 classes: 9 (16 in the other split)",
        "2 of 56 test samples repeat the pixels of a training sample; all are kept",
        "3 of 163 samples of train.csv repeat the pixels of an earlier one; all are kept",
    )
    job = json.loads(inputs.document(["reference"], training={"max_steps": 1}))
    for where, data, options in (
        ("here", folder, []),
        ("at the coordinator", Path("remarkable"), ["--remote-data"]),
    ):
        path = tmp_path / "job.yaml"
        job["data"] = {"train": str(data / "train.csv"), "test": str(data / "test.csv")}
        path.write_text(json.dumps(job))
        out = tmp_path / where
        ran = platform.crosstrain("run", path, "--json", "--results", out, *options)
        assert ran.code == 0, ran.err
        for text in expected:
            assert ran.err.count(f"warning: {text}") == 1, (where, ran.err)
            assert {"severity": "warning", "text": text} in ran.json["remarks"], where
            assert f"data warning: {text}" in (out / "run.log").read_text(), where
        shown = platform.client.get_job(ran.json["job_id"])
        assert [remark.text for remark in shown.remarks] == [item["text"] for item in ran.json["remarks"]]


def test_a_dark_test_set_is_divided_as_the_training_set_is(platform: Platform, files: tuple[Path, Path]) -> None:
    dark = platform.data_dir / "dark.csv"
    inputs.write_csv(dark, np.arange(10), np.zeros((10, 784), dtype=np.int64))
    data = {"train": "digits/train.csv", "test": "dark.csv"}
    text = inputs.document(["reference"], training={"max_steps": 1}, data=data)
    record = platform.finish(platform.client.create_job(text))
    assert (record.job.train.divisor, record.job.test.divisor) == (255.0, 255.0)


def test_every_framework_computes_from_the_same_samples(
    platform: Platform, available: Available, files: tuple[Path, Path], tmp_path: Path
) -> None:
    engines = available()
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({**json.loads(inputs.document(engines)), "data": {"train": str(files[0])}}))
    addresses = [
        part
        for service in platform.services.values()
        for part in ("--address", f"{service.name}=127.0.0.1:{service.port}")
    ]
    ran = platform.crosstrain("data", "consistency", path, "--json", *addresses)
    assert ran.code == 0, ran.out + ran.err
    info = import_dataset(files[0], ImportOptions(), platform.cache)
    expected = sample_digests(info, 100, platform.cache)
    assert len(set(expected)) == 100
    found = ran.json
    assert (found["samples"], found["identical"], found["expected"]) == (100, True, expected)
    assert [item["engine"].partition("@")[0] for item in found["engines"]] == engines
    for item in found["engines"]:
        assert item["error"] == ""
        assert item["handed"] == expected
        assert item["computed"] == expected
