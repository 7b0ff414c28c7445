"""Small inputs for the tests of the data import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crosstrain.data import DataCache, DataError, DatasetInfo, ImportOptions, import_dataset

# data_inputs.py is shared by the tests of this folder and by processes that they start.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def cache(tmp_path: Path) -> DataCache:
    return DataCache(tmp_path / "cache")


@pytest.fixture
def load(tmp_path: Path, cache: DataCache) -> Callable[..., DatasetInfo]:
    """Imports text or bytes as a CSV file, with options as keywords."""

    def run(content: str | bytes, name: str = "data.csv", **options: object) -> DatasetInfo:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return import_dataset(path, ImportOptions(**options), cache)  # type: ignore[arg-type]

    return run


@pytest.fixture
def refused(load: Callable[..., DatasetInfo], cache: DataCache) -> Callable[..., DataError]:
    """Like ``load`` for content that must be refused, leaving nothing behind; returns the error."""

    def run(content: str | bytes, name: str = "data.csv", **options: object) -> DataError:
        with pytest.raises(DataError) as caught:
            load(content, name, **options)
        for folder in ("tmp", "sha256"):
            assert not list((cache.root / "data" / folder).iterdir())
        assert not list((cache.root / "data" / "index").iterdir())
        assert str(cache.root.parent) not in str(caught.value)
        return caught.value

    return run


@pytest.fixture
def rows() -> np.ndarray:
    """(12, 10): labels 0..2 and 3x3 pixels of 0..255, all rows different."""
    values = np.random.RandomState(3).randint(0, 256, (12, 10))
    values[:, 0] = np.arange(12) % 3
    values[0, 1] = 255
    return values
