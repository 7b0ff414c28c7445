"""crosstrain scale --bare with PyTorch: services and plain scripts, each by its own launcher."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from . import inputs
from .platform import Platform


@pytest.mark.timeout(560)
def test_scaling_against_the_bare_launcher(
    platform: Platform, available: Callable[..., list[str]], files: tuple[Path, Path]
) -> None:
    available("torch")
    job = platform.folder / "scale.json"
    data = {"train": str(files[0]), "test": str(files[1])}
    # 160 samples in batches of 12: what is left at the end of an epoch is a smaller batch.
    training = {"epochs": 2, "batch_size": 12}
    # That N ranks compute what one does, other tests show.
    verdict = {"envelope": 0, "probe": False}
    job.write_text(inputs.document(["torch"], model="cnn2", data=data, training=training, verdict=verdict))
    ran = platform.crosstrain(
        "scale", job, "--ranks", "1,2", "--repeats", "2", "--bare", "--results", platform.folder / "scale", seconds=500
    )
    assert ran.code in (0, 2), ran.err + ran.out
    assert "torchrun torch_ddp_cnn2.py" in ran.out
    with (platform.folder / "scale" / "scale.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["ranks"], row["repeats"]) for row in rows] == [("1", "2"), ("2", "2")]
    for row in rows:
        for name in ("samples_per_second", "speed_up", "bare_samples_per_second", "ratio", "ratio_low", "ratio_high"):
            assert float(row[name]) > 0, (name, row)
    assert "Against bare" in (platform.folder / "scale" / "scale.html").read_text()
