"""npz, IDX and image folders: the same samples as CSV, and refusals that name the cause."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile

import numpy as np
import pytest
from data_inputs import csv_text
from PIL import Image

from crosstrain.data import DataError, ImportOptions, import_dataset, import_pair

RANDOM = np.random.RandomState(5)
GREY = RANDOM.randint(0, 256, (6, 5, 7)).astype(np.uint8)
COLOUR = RANDOM.randint(0, 256, (6, 3, 5, 7)).astype(np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0])


@pytest.fixture
def npz(tmp_path, cache):
    def run(options=None, compressed=False, **arrays):
        path = tmp_path / "data.npz"
        (np.savez_compressed if compressed else np.savez)(path, **arrays)
        return import_dataset(path, ImportOptions(**(options or {})), cache)

    return run


def refuse(call, *words):
    with pytest.raises(DataError) as caught:
        call()
    for word in words:
        assert word in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    "names", [("x_train", "y_train"), ("images", "labels"), ("X", "Y"), ("data", "target")]
)
@pytest.mark.parametrize("compressed", [True, False])
def test_npz_names(npz, cache, names, compressed):
    info = npz(compressed=compressed, **{names[0]: GREY, names[1]: LABELS})
    assert (info.input_shape, info.classes, info.format) == ((1, 5, 7), 3, "npz")
    np.testing.assert_array_equal(cache.open(info.pixels_digest)[:, 0], GREY)
    np.testing.assert_array_equal(cache.open(info.labels_digest), LABELS)


@pytest.mark.parametrize(
    "images",
    [
        COLOUR,
        COLOUR.transpose(0, 2, 3, 1),
        np.asfortranarray(COLOUR),
        COLOUR.astype(">i4"),
        COLOUR.astype(np.float64),
    ],
    ids=["nchw", "nhwc", "fortran", "big-endian", "float64"],
)
def test_npz_layouts_give_the_same_array(npz, cache, images):
    info = npz(images=images, labels=LABELS[:, None].astype(np.uint8))
    assert (info.input_shape, info.dtype) == ((3, 5, 7), "uint8")
    np.testing.assert_array_equal(cache.open(info.pixels_digest), COLOUR)


def test_npz_same_digest_as_csv(npz, load):
    rows = np.hstack([LABELS[:, None], GREY.reshape(6, -1)])
    csv = load(csv_text(rows), shape=(1, 5, 7))
    other = npz(images=GREY, labels=LABELS)
    assert (other.pixels_digest, other.labels_digest) == (csv.pixels_digest, csv.labels_digest)


def test_npz_ambiguous_layout(npz):
    images = np.zeros((6, 3, 7, 3), dtype=np.uint8)
    error = refuse(lambda: npz(images=images, labels=LABELS), "nhwc", "3x7x3")
    assert error.field == "data.layout"
    assert npz({"layout": "nhwc"}, images=images, labels=LABELS).input_shape == (3, 3, 7)
    assert npz({"layout": "nchw"}, images=images, labels=LABELS).input_shape == (3, 7, 3)
    assert npz({"shape": (3, 3, 7)}, images=images, labels=LABELS).input_shape == (3, 3, 7)


def test_npz_flat_and_one_dimensional(npz):
    flat = RANDOM.randint(0, 256, (6, 49))
    assert npz(x=flat, y=LABELS).input_shape == (1, 7, 7)
    assert npz({"shape": (1, 49)}, x=flat, y=LABELS).input_shape == (1, 49)
    assert npz({"shape": (7, 7)}, x=flat.reshape(6, 7, 7), y=LABELS).input_shape == (7, 7)


def test_npz_one_hot(npz, cache):
    hot = np.eye(3)[LABELS]
    assert "`labels: onehot`" in refuse(lambda: npz(x=GREY, y=hot)).message
    info = npz({"labels": "onehot"}, x=GREY, y=hot)
    np.testing.assert_array_equal(cache.open(info.labels_digest), LABELS)
    hot[4] = 0
    assert refuse(lambda: npz({"labels": "onehot"}, x=GREY, y=hot)).row == 5


def test_npz_refusals(npz):
    objects = np.array([{"a": 1}] * 6, dtype=object)
    refuse(lambda: npz(images=objects, labels=LABELS), "pickle", "'images'")
    refuse(lambda: npz(images=GREY, labels=objects), "pickle", "'labels'")
    refuse(lambda: npz(pictures=GREY, labels=LABELS), "usual pair of names", "pictures")
    refuse(lambda: npz(images=GREY, labels=LABELS[:5]), "6 images and labels of shape (5,)")
    refuse(lambda: npz(images=GREY, labels=LABELS.astype(str)), "dtype")
    refuse(lambda: npz(images=GREY[:0], labels=LABELS[:0]), "no samples")
    refuse(lambda: npz({"shape": (1, 7, 5)}, images=GREY, labels=LABELS), "1x7x5", "1x5x7")
    values = COLOUR.astype(np.float32)
    values[4, 1, 2, 3] = np.nan
    error = refuse(lambda: npz(images=values, labels=LABELS), "nan")
    assert (error.row, error.column, error.value) == (5, "images[1, 2, 3]", "nan")
    labels = LABELS.astype(float)
    labels[2] = 0.5
    assert refuse(lambda: npz(images=GREY, labels=labels)).row == 3


def npz_bytes(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def test_damaged_npz(tmp_path, cache):
    good = npz_bytes(images=GREY, labels=LABELS)
    short = io.BytesIO()
    with zipfile.ZipFile(short, "w") as archive:
        for name, values in (("images", GREY), ("labels", LABELS)):
            out = io.BytesIO()
            np.save(out, values)
            archive.writestr(f"{name}.npy", out.getvalue()[: -3 if name == "images" else None])
    flipped = bytearray(good)
    flipped[200] ^= 0xFF
    for content in (
        good[:100],
        good[: len(good) // 2],
        bytes(flipped),
        short.getvalue(),
        b"PK\x03\x04" + b"x" * 50,
        b"junk",
    ):
        path = tmp_path / "data.npz"
        path.write_bytes(content)
        refuse(lambda path=path: import_dataset(path, None, cache))
        assert not list((cache.root / "data" / "tmp").iterdir())


def idx(values, kind=0x08):
    return (
        bytes([0, 0, kind, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    )


@pytest.fixture
def mnist(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()

    def write(images=None, labels=None, start="train", gz=False):
        suffix, pack = (".gz", gzip.compress) if gz else ("", bytes)
        path = folder / f"{start}-images-idx3-ubyte{suffix}"
        path.write_bytes(pack(idx(GREY) if images is None else images))
        labels = idx(LABELS.astype(np.uint8)) if labels is None else labels
        (folder / f"{start}-labels-idx1-ubyte{suffix}").write_bytes(pack(labels))
        return path

    return write


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("folder", [True, False])
def test_idx(mnist, cache, gz, folder):
    path = mnist(gz=gz)
    info = import_dataset(path.parent if folder else path, None, cache)
    assert (info.format, info.input_shape, info.samples) == ("idx", (1, 5, 7), 6)
    np.testing.assert_array_equal(cache.open(info.pixels_digest)[:, 0], GREY)
    np.testing.assert_array_equal(cache.open(info.labels_digest), LABELS)


def test_idx_refusals(mnist, cache):
    def load(path):
        return lambda: import_dataset(path, None, cache)

    good, labels = idx(GREY), idx(LABELS.astype(np.uint8))
    refuse(load(mnist(b"\1" + good[1:])), "not an IDX file", "01 00 08 03")
    refuse(load(mnist(idx(GREY, 0x0D))), "float32")
    refuse(load(mnist(labels, labels)), "1 axes")
    refuse(load(mnist(good[:-1])), "announces 210 values", "209")
    refuse(load(mnist(good + b"x")), "more than 210")
    refuse(load(mnist(good[:10])), "cut short in its header")
    refuse(load(mnist(good, labels[:-1])), "announces 6 values")
    refuse(load(mnist(good, idx(LABELS[:5].astype(np.uint8)))), "6 images", "5 labels")
    path = mnist()
    refuse(load(path.parent / "train-labels-idx1-ubyte"), "labels file")
    mnist(start="t10k")
    refuse(load(path.parent), "t10k-images-idx3-ubyte, train-images-idx3-ubyte")
    (path.parent / "train-labels-idx1-ubyte").unlink()
    refuse(load(path), "train-labels-idx1-ubyte is not beside it")


def test_truncated_gzip_idx(mnist, cache):
    path = mnist(gz=True)
    path.write_bytes(path.read_bytes()[:-9])
    refuse(lambda: import_dataset(path, None, cache), "cut short")


@pytest.fixture
def pictures(tmp_path):
    def write(name, images, suffix=".png", **save):
        root = tmp_path / name
        for index, (label, values) in enumerate(images):
            (root / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(root / label / f"{index:02d}{suffix}", **save)
        return root

    return write


def test_image_folder(pictures, cache):
    names = ["cat", "ant", "bee", "bee", "ant", "cat"]
    root = pictures("animals", zip(names, COLOUR.transpose(0, 2, 3, 1), strict=True))
    info = import_dataset(root, None, cache)
    assert (info.format, info.class_names, info.input_shape) == ("images", ("ant", "bee", "cat"), (3, 5, 7))
    np.testing.assert_array_equal(cache.open(info.pixels_digest), COLOUR[[1, 4, 2, 3, 0, 5]])
    assert list(cache.open(info.labels_digest)) == [0, 0, 1, 1, 2, 2]


def test_grey_images_and_jpeg(pictures, cache):
    info = import_dataset(pictures("g", zip("abab", GREY, strict=False)), None, cache)
    assert info.input_shape == (1, 5, 7)
    info = import_dataset(pictures("j", zip("abab", GREY, strict=False), ".jpg"), None, cache)
    assert info.samples == 4
    assert "jpeg" in [finding.code for finding in info.warnings]


def test_test_folder_without_a_class(pictures, cache):
    train = pictures("train", zip("abcabc", GREY, strict=True))
    test = pictures("test", zip("ccb", GREY, strict=False))
    first, second = import_pair(train, test, None, cache)
    assert second.class_names == first.class_names == ("a", "b", "c")
    assert second.class_counts == (0, 1, 2)
    strange = pictures("strange", zip("ax", GREY, strict=False))
    refuse(lambda: import_pair(train, strange, None, cache), "unknown classes: x")


def test_image_folder_refusals(pictures, cache):
    root = pictures("sizes", [("a", GREY[0]), ("b", GREY[1][:4])])
    error = refuse(lambda: import_dataset(root, None, cache), "1x4x7", "1x5x7")
    assert error.field == "b/01.png"
    refuse(
        lambda: import_dataset(pictures("alpha", [("a", np.zeros((2, 2, 4), np.uint8))]), None, cache), "RGBA"
    )
    refuse(
        lambda: import_dataset(pictures("deep", [("a", np.zeros((2, 2), np.uint16))]), None, cache), "I;16"
    )
    root = pictures("cut", [("a", GREY[0]), ("b", GREY[1])])
    (root / "b" / "01.png").write_bytes((root / "b" / "01.png").read_bytes()[:60])
    assert refuse(lambda: import_dataset(root, None, cache), "damaged").field == "b/01.png"
    (root / "b" / "01.png").write_text("no image")
    refuse(lambda: import_dataset(root, None, cache), "not a PNG or JPEG")
    (root / "b" / "01.png").unlink()
    refuse(lambda: import_dataset(root, None, cache), "no PNG or JPEG image")


def test_other_files_in_an_image_folder_are_named(pictures, cache):
    root = pictures("mixed", zip("abab", GREY, strict=False))
    (root / "a" / "notes.txt").write_text("x")
    info = import_dataset(root, None, cache)
    assert [finding.code for finding in info.warnings if "a/notes.txt" in finding.message] == [
        "files_left_out"
    ]


def test_headers_that_announce_too_much(mnist, npz, tmp_path, cache):
    huge = bytes([0, 0, 8, 3]) + struct.pack(">3I", 6, 2**32 - 1, 2**32 - 1) + b"x" * 50
    refuse(lambda: import_dataset(mnist(huge), None, cache), "too large")
    huge = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 5, 7) + b"x" * 50
    labels = bytes([0, 0, 8, 1]) + struct.pack(">I", 2**32 - 1) + b"x" * 50
    refuse(lambda: import_dataset(mnist(huge, labels), None, cache), "announces 4294967295 values")
    for shape in ((10**15, 4), (6, 10**15), (6, 0), (-6, 4)):
        path = tmp_path / "data.npz"
        with zipfile.ZipFile(path, "w") as archive:
            for name, axes in (("x", shape), ("y", shape[:1])):
                text = repr({"descr": "|u1", "fortran_order": False, "shape": axes}).encode() + b"\n"
                header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
                archive.writestr(f"{name}.npy", header + b"x" * 6)
        refuse(lambda path=path: import_dataset(path, None, cache))


def test_two_pairs_in_one_folder_are_remembered_apart(mnist, cache, monkeypatch):
    train, test = mnist(), mnist(idx(GREY[::-1].copy()), start="t10k")
    first, second = import_pair(train, test, None, cache)
    monkeypatch.setattr("crosstrain.data.source.Source.content_digest", None)
    assert import_pair(train, test, None, cache) == (first, second)
    assert first.pixels_digest != second.pixels_digest
