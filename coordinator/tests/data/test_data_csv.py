"""CSV files: what is accepted gives the same arrays, what is refused names the place."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from data_inputs import csv_text

from crosstrain.data import ImportOptions, import_dataset
from crosstrain.data.csv_reader import BLOCK_BYTES


def digests(info):
    return info.pixels_digest, info.labels_digest


def test_plain_file(load, cache, rows):
    info = load(csv_text(rows))
    assert (info.samples, info.input_shape, info.classes, info.dtype, info.divisor) == (
        12,
        (1, 3, 3),
        3,
        "uint8",
        255,
    )
    assert (info.minimum, info.maximum) == (rows[:, 1:].min(), 255)
    assert info.class_counts == (4, 4, 4)
    assert info.warnings == ()
    pixels, labels = cache.open(info.pixels_digest, verify=True), cache.open(info.labels_digest, verify=True)
    assert isinstance(pixels, np.memmap)
    assert pixels.flags.c_contiguous
    assert not pixels.flags.writeable
    assert pixels.dtype == "uint8"
    assert labels.dtype == "<i8"
    np.testing.assert_array_equal(pixels.reshape(12, 9), rows[:, 1:])
    np.testing.assert_array_equal(labels, rows[:, 0])


def quoted(text: str) -> str:
    return "\n".join(",".join(f'"{field}"' for field in line.split(",")) for line in text.splitlines()) + "\n"


TWINS = {
    "no header": lambda text: text.split("\n", 1)[1],
    "byte-order mark and quoted header": lambda text: (
        "\ufeff" + quoted(text.split("\n")[0]) + text.split("\n", 1)[1]
    ),
    "all quoted": quoted,
    "one field quoted": lambda text: text.replace("255", '"255"'),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "bare CR": lambda text: text.replace("\n", "\r"),
    "extra trailing newlines": lambda text: text + "\n\r\n \n",
    "no trailing newline": lambda text: text[:-1],
    "blank lines inside": lambda text: text.replace("\n", "\n\n"),
    "leading blank line": lambda text: "\n" + text,
    "spaces": lambda text: text.replace(",", " , "),
    "spaces before quotes": lambda text: quoted(text).replace(",", ", "),
    "decimals": lambda text: text.replace("\n0,", "\n0.0,").replace(",255", ",2.55e2"),
    "plus and leading zeros": lambda text: text.replace("255", "+00255"),
    "header of another case": lambda text: text.replace("label", " LABEL "),
}


@pytest.mark.parametrize("change", TWINS.values(), ids=TWINS)
def test_twin_of_the_plain_file_has_its_digests(load, rows, change):
    assert digests(load(change(csv_text(rows)), "twin.csv")) == digests(load(csv_text(rows)))


def test_gzip_twin(load, rows):
    assert digests(load(gzip.compress(csv_text(rows).encode()), "twin.csv.gz")) == digests(
        load(csv_text(rows))
    )


def test_line_ends_split_between_blocks(load):
    rows = np.full((4000, 50), 255)  # lines of 200 bytes with CRLF, so a block ends inside one
    rows[:, 0] = np.arange(4000) % 2
    text = csv_text(rows, header=False).replace("\n", "\r\n")
    assert len(text) > 2 * BLOCK_BYTES
    info = load(text, shape=(1, 7, 7))
    assert info.samples == 4000
    assert info.class_counts == (2000, 2000)


@pytest.mark.parametrize(
    "bad", ["?", "NaN", "nan", "Inf", "-inf", "", " ", "1e39", "0x10", "1_0", "12abc", "1;2", "ü"]
)
@pytest.mark.parametrize("header", [True, False])
def test_value_that_is_no_number(refused, rows, bad, header):
    lines = csv_text(rows, header).split("\n")
    fields = lines[7].split(",")
    fields[4] = bad
    lines[7] = ",".join(fields)
    error = refused("\n".join(lines))
    assert (error.row, error.column, error.value) == (8, "pixel3" if header else "5", bad.strip())
    assert "line 8" in error.message
    assert error.field == "data.csv"


def test_bad_value_in_the_first_line_is_not_a_header(refused):
    error = refused("0,?,2,3,4\n1,5,6,7,8\n")
    assert (error.row, error.column, error.value) == (1, "2", "?")


def test_bad_value_in_a_later_block_after_blank_lines(refused):
    rows = np.full((8000, 50), 255)
    rows[:, 0] = np.arange(8000) % 2
    lines = csv_text(rows, header=False).split("\n")
    lines[3] = "\n\n" + lines[3]
    lines[7990] = lines[7990].replace("255", "NaN", 1)
    error = refused("\n".join(lines), shape=(1, 7, 7))
    assert (error.row, error.column, error.value) == (7993, "2", "NaN")


@pytest.mark.parametrize(("extra", "found"), [(",7", 786), ("", 785)])
def test_number_of_fields(load, refused, extra, found):
    line = "1" + ",0" * 783 + ",255"
    text = f"{line}\n{line.replace('1', '0', 1)}\n{line}{extra}\n"
    if not extra:
        assert load(text).samples == 3
        return
    error = refused(text)
    assert error.row == 3
    assert error.message == "line 3: 785 fields were expected, 786 were found"


def test_fields_that_cancel_out_are_still_ragged(refused):
    error = refused("0,1,2,3,4\n1,1,2,3\n0,1,2,3,4,5\n")
    assert (error.row, "5 fields were expected, 4 were found" in error.message) == (2, True)


@pytest.mark.parametrize(
    ("label", "reason"), [("-1", "is negative"), ("1.5", "is not an integer"), ("1e30", "is not an integer")]
)
def test_label_that_is_no_class(refused, rows, label, reason):
    lines = csv_text(rows).split("\n")
    lines[5] = label + lines[5][1:]
    error = refused("\n".join(lines))
    assert (error.row, error.column) == (6, "label")
    assert float(error.value) == float(label)
    assert reason in error.message


def test_negative_label_on_the_integer_path_keeps_later_rows_right(refused):
    assert refused("0,1,2,3,4\n\n-2,1,2,3,4\n").row == 3


def test_label_column_by_name_and_number(load, cache, rows):
    plain = digests(load(csv_text(rows)))
    moved = np.roll(rows, -1, axis=1)
    names = ",".join([*(f"pixel{i}" for i in range(9)), "label"])
    assert digests(load(names + "\n" + csv_text(moved, header=False), "named.csv")) == plain
    assert digests(load(csv_text(moved, header=False), "numbered.csv", label=10)) == plain
    other = names.replace("label", "kind")
    info = load(other + "\n" + csv_text(moved, header=False), "other.csv", label="Kind")
    assert digests(info) == plain
    middle = rows[:, [1, 2, 0, 3, 4, 5, 6, 7, 8, 9]]
    assert digests(load(csv_text(middle, header=False), "middle.csv", label=3)) == plain


def test_label_column_that_is_not_there(refused, rows):
    assert "no column 11" in refused(csv_text(rows), label=11).message
    assert "named 'kind'" in refused(csv_text(rows), label="kind").message
    assert "no header" in refused(csv_text(rows, header=False), label="kind").message


def test_header_without_a_usual_label_name_is_warned(load, rows):
    text = csv_text(rows).replace("label", "first")
    assert [finding.code for finding in load(text).warnings] == ["label_column_assumed"]


def test_counted_header_of_a_data_frame(load):
    rows = np.zeros((2, 785), dtype=int)
    rows[:, 0], rows[:, 1] = [0, 1], [7, 9]
    counted = ",".join(str(i) for i in range(785)) + "\n" + csv_text(rows, header=False)
    assert digests(load(counted)) == digests(load(csv_text(rows), "plain.csv"))


def test_row_index_column(refused, rows):
    indexed = np.hstack([np.arange(12)[:, None], rows])
    text = ",label," + ",".join(f"pixel{i}" for i in range(9)) + "\n" + csv_text(indexed, header=False)
    assert "row index" in refused(text).message


def test_two_label_columns(refused):
    assert "both named 'label'" in refused("label,label,a,b,c\n0,1,2,3,4\n").message


def test_pixel_columns_out_of_order(load):
    info = load("label,pixel0,pixel10,pixel1,pixel2\n0,1,2,3,4\n1,2,3,4,5\n")
    assert [finding.code for finding in info.warnings] == ["pixel_columns_unordered"]


def test_header_option(load, refused):
    assert load("label,a,b,c,d\n0,1,2,3,4\n1,2,3,4,5\n", header=True).samples == 2
    assert load("0,1,2,3,4\n0,1,2,3,9\n1,2,3,4,5\n", "b.csv", header=True).samples == 2


def test_header_option_false_names_the_header(refused):
    error = refused("label,a,b,c,d\n0,1,2,3,4\n", header=False)
    assert (error.row, error.column, error.value) == (1, "1", "label")


@pytest.mark.parametrize(("hot", "scale"), [("first", 1), ("last", 1)])
def test_one_hot_columns_are_detected(refused, load, hot, scale):
    random = np.random.RandomState(0)
    labels = np.arange(40) % 10
    pixels = random.randint(0, 256, (40, 784))
    parts = [np.eye(10, dtype=int)[labels], pixels]
    table = np.hstack(parts if hot == "first" else parts[::-1])
    error = refused(csv_text(table, header=False))
    assert error.field == "data.labels"
    assert "one-hot" in error.message
    assert "`labels: onehot`" in error.message
    assert ("columns 1 to 10" if hot == "first" else "columns 785 to 794") in error.message
    info = load(csv_text(table, header=False), labels="onehot")
    plain = load(csv_text(np.hstack([labels[:, None], pixels])), "plain.csv")
    assert digests(info) == digests(plain)
    assert info.classes == 10


def test_one_hot_row_without_a_one(refused):
    table = np.hstack([np.eye(3, dtype=int)[np.arange(1500) % 3], np.full((1500, 4), 9)])
    table[1400, :3] = 0
    error = refused(csv_text(table, header=False), labels="onehot")
    assert error.row == 1401
    assert "single 1" in error.message


def test_binary_labels_are_not_taken_for_one_hot(load):
    rows = np.zeros((60, 785), dtype=int)
    rows[:, 0] = np.arange(60) % 2
    rows[:, 400] = np.arange(60)
    assert load(csv_text(rows)).classes == 2


PACKED = gzip.compress(b"0,1,2,3,4\n1,2,3,4,5\n" * 500)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n\n \n", "no lines of data"),
        (b"label,a,b,c,d\n", "no data lines"),
        (b"label,a,b,c,d\n\n \n", "no data lines"),
        (bytes(range(256)) * 20, "binary"),
        (b"1,2\n" * 2000 + b"\0\0\0", "zero bytes"),
        ("0,1,2,3,4\n".encode("utf-16"), "UTF-16"),
        (b"0,1,2,3,\xff\n1,2,3,4,5\n", "not UTF-8"),
        (b'0,1,2,3,"4\n1,2,3,4,5\n', "quote"),
        (b"0;1;2;3;4\n", "semicolons"),
        (b"0\t1\t2\t3\t4\n", "tabs"),
        (b"5\n6\n", "one column"),
        (b"\x80\x04\x95\x00junk", "pickle"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (gzip.compress(b"0,1,2,3,4\n1,2,3,4,5\n" * 500)[:-20], "cut short"),
        (
            gzip.compress(b"0,1,2,3,4\n1,2,3,4,5\n" * 500)[:-8] + b"\1\2\3\4\5\6\7\x08",
            "compressed data is damaged",
        ),
        (gzip.compress(b""), "no lines of data"),
    ],
)
def test_files_that_are_no_data(refused, content, words):
    assert words in refused(content).message


def test_line_without_end(refused, monkeypatch):
    monkeypatch.setattr("crosstrain.data.csv_blocks.MAX_LINE_BYTES", 1 << 20)
    assert "longer than 1 MiB" in refused(b"1," * (1 << 20)).message


def test_missing_file_and_folder(tmp_path, cache):
    for path, words in ((tmp_path / "gone.csv", "no such file"), (tmp_path, "is a folder with neither")):
        with pytest.raises(Exception, match=words) as caught:
            import_dataset(path, ImportOptions(), cache)
        assert type(caught.value).__name__ == "DataError"


def test_floats_are_stored_as_float32(load, cache):
    info = load("0,0.5,0,1,0.25\n1,0.1,-0.0,1,1\n")
    assert (info.dtype, info.divisor, info.minimum, info.maximum) == ("float32", 1.0, 0.0, 1.0)
    pixels = cache.open(info.pixels_digest)
    assert pixels.dtype == "<f4"
    assert pixels[1, 0, 0, 0] == np.float32(0.1)
    assert not np.signbit(pixels).any()


def test_first_float_in_a_later_block(load, cache):
    rows = np.random.RandomState(1).randint(0, 256, (8000, 50)).astype(float)
    rows[:, 0] = np.arange(8000) % 2
    rows[7000, 5] = 0.5
    text = "\n".join(",".join(f"{value:g}" for value in row) for row in rows)
    info = load(text, shape=(1, 7, 7))
    assert info.dtype == "float32"
    np.testing.assert_array_equal(
        cache.open(info.pixels_digest).reshape(8000, 49), rows[:, 1:].astype(np.float32)
    )


def test_divisor(load):
    assert load("0,0,1,1,0\n1,1,1,0,0\n").divisor == 1.0
    info = load("0,0,1,200,0\n1,1,1,0,0\n", divisor=200)
    assert (info.divisor, info.divisor_stated) == (200, True)


def test_numbers_of_many_digits(load, cache):
    info = load("0,1,22,333,4444\n1,55555,666666,123456789,1234567890123\n")
    expected = np.array([1, 22, 333, 4444, 55555, 666666, 123456789, 1234567890123]).astype(np.float32)
    np.testing.assert_array_equal(cache.open(info.pixels_digest).ravel(), expected)
