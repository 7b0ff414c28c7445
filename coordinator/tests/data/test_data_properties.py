"""Any table of numbers survives any way of writing it; junk never raises anything but DataError."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from crosstrain.data import DataCache, DataError, ImportOptions, import_dataset
from crosstrain.data.csv_blocks import LineBlock, line_blocks
from crosstrain.data.csv_numbers import Naming, parse_carefully, parse_digits, parse_fast

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VALUES = st.one_of(st.integers(0, 255), st.integers(-(10**6), 10**12), FLOATS)


@st.composite
def tables(draw, values=VALUES):
    width = draw(st.sampled_from([1, 4, 9]))
    rows = draw(st.lists(st.lists(values, min_size=width, max_size=width), min_size=2, max_size=6))
    return [[index % 2, *row] for index, row in enumerate(rows)]


def written(value, quote, space):
    text = repr(value)
    text = f'"{text}"' if quote else text
    return f"{space}{text}"


@settings(deadline=None, max_examples=80)
@given(
    table=tables(),
    quotes=st.lists(st.booleans(), min_size=1, max_size=7),
    space=st.sampled_from(["", " "]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    tail=st.sampled_from(["", "\n", "\n\n"]),
    mark=st.booleans(),
)
def test_csv_round_trip(table, quotes, space, end, tail, mark):
    cells = iter(range(10**6))
    lines = [",".join(written(v, quotes[next(cells) % len(quotes)], space) for v in row) for row in table]
    text = ("\ufeff" if mark else "") + end.join(lines) + tail.replace("\n", end)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes(text.encode())
        cache = DataCache(Path(folder) / "cache")
        info = import_dataset(path, ImportOptions(header=False), cache)
        pixels = np.array(cache.open(info.pixels_digest)).reshape(len(table), -1)
    expected = np.array([[float(value) for value in row[1:]] for row in table]).astype(np.float32)
    np.testing.assert_array_equal(pixels.astype(np.float32), expected)
    assert (info.dtype == "uint8") == bool(
        ((expected == np.floor(expected)) & (expected >= 0) & (expected <= 255)).all()
    )


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(st.integers(0, 10**17), min_size=3, max_size=3), min_size=1, max_size=8))
def test_digits_agree_with_python(table):
    text = "".join(",".join(map(str, row)) + "\n" for row in table).encode()
    np.testing.assert_array_equal(parse_digits(text, 3), np.array(table))


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet='0123456789,.\n"-+e ?x', max_size=40), st.integers(2, 4))
def test_fast_way_accepts_only_what_the_careful_way_accepts(text, columns):
    """The fast ways must never read a block differently than the field-by-field way."""
    raw = text.encode() + b"\n"
    fast = parse_fast(raw, columns)
    if fast is not None:
        careful = parse_carefully(LineBlock(1, raw), columns, Naming("t"))
        np.testing.assert_array_equal(fast.astype(np.float64), careful)


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=80) | st.text(alphabet='0123456789,.\n\r"-;\t label', max_size=80).map(str.encode))
def test_junk_is_refused_with_a_data_error(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes(content)
        with contextlib.suppress(DataError):
            assert import_dataset(path, ImportOptions(), DataCache(Path(folder) / "cache")).samples > 0


@settings(deadline=None, max_examples=150)
@given(st.text(alphabet="12,\r\n", max_size=60), st.integers(1, 7))
def test_line_blocks_do_not_depend_on_the_chunks(text, size):
    raw = text.encode()
    chunks = [raw[at : at + size] for at in range(0, len(raw), size)]
    blocks = list(line_blocks(chunks, "t"))
    joined = b"".join(block.text for block in blocks)
    expected = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert joined == (expected if expected.endswith(b"\n") or not expected else expected + b"\n")
    line = 1
    for block in blocks:
        assert block.first_line == line
        assert block.text.endswith(b"\n")
        line += block.text.count(b"\n")
