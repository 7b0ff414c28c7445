"""The cache: atomic, shared, validated, and used instead of the source when the source is unchanged."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest
from data_inputs import csv_text, import_slowly

from crosstrain.data import DataCache, DataError, DatasetInfo, ImportOptions, import_dataset
from crosstrain.data import importer as importer_module
from crosstrain.data.npy import ArrayWriter


@pytest.fixture
def path(tmp_path, rows):
    target = tmp_path / "data.csv"
    target.write_text(csv_text(rows))
    return target


@pytest.fixture
def reads(monkeypatch):
    """Counts how often a CSV source is really read."""
    seen = []
    real = importer_module.READERS["csv"]

    def counted(*arguments):
        seen.append(1)
        return real(*arguments)

    monkeypatch.setitem(importer_module.READERS, "csv", counted)
    return seen


def test_unchanged_source_is_not_read_again(path, cache, reads, monkeypatch):
    first = import_dataset(path, None, cache)
    monkeypatch.setattr("crosstrain.data.source.Source.content_digest", None)
    assert import_dataset(path, None, cache) == first
    assert len(reads) == 1


def test_touched_source_is_compared_by_content(path, cache, reads):
    first = import_dataset(path, None, cache)
    os.utime(path, ns=(1, 1))
    assert import_dataset(path, None, cache) == first
    assert len(reads) == 1
    path.write_text(path.read_text().replace("255", "254"))
    assert import_dataset(path, None, cache).pixels_digest != first.pixels_digest
    assert len(reads) == 2


def test_options_are_part_of_the_key(path, cache, reads):
    import_dataset(path, None, cache)
    assert import_dataset(path, ImportOptions(divisor=2), cache).divisor == 2
    assert len(reads) == 2


def test_info_survives_json(path, cache):
    info = import_dataset(path, None, cache)
    assert DatasetInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
    with pytest.raises(DataError):
        DatasetInfo.from_json({**info.to_json(), "version": 0})
    with pytest.raises(DataError):
        DatasetInfo.from_json({"version": 1})


def test_files_are_those_of_numpy_save(path, cache, rows):
    info = import_dataset(path, None, cache)
    out = io.BytesIO()
    np.save(out, rows[:, 1:].reshape(12, 1, 3, 3).astype(np.uint8))
    assert cache.path(info.pixels_digest).read_bytes() == out.getvalue()


@pytest.mark.parametrize("damage", ["truncate", "lengthen", "remove", "replace"])
def test_damaged_array_is_found_and_imported_again(path, cache, reads, damage):
    info = import_dataset(path, None, cache)
    array = cache.path(info.pixels_digest)
    content = array.read_bytes()
    if damage == "truncate":
        array.write_bytes(content[:-5])
    elif damage == "lengthen":
        array.write_bytes(content + b"x")
    elif damage == "remove":
        array.unlink()
    else:
        array.write_bytes(b"junk")
    with pytest.raises(DataError, match="not in the cache" if damage == "remove" else "damaged"):
        cache.open(info.pixels_digest)
    assert import_dataset(path, None, cache) == info
    assert len(reads) == 2
    assert array.read_bytes() == content


def test_altered_byte_is_found_by_verify(path, cache):
    info = import_dataset(path, None, cache)
    array = cache.path(info.pixels_digest)
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    cache.open(info.pixels_digest)
    with pytest.raises(DataError, match="another digest"):
        cache.open(info.pixels_digest, verify=True)


def test_pickle_in_the_cache_is_not_loaded(path, cache):
    info = import_dataset(path, None, cache)
    np.save(io.BytesIO(), np.zeros(1))
    with open(cache.path(info.pixels_digest), "wb") as file:
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="damaged"):
        cache.open(info.pixels_digest)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_only_digests_are_opened(cache, digest):
    with pytest.raises(DataError, match="not a SHA-256"):
        cache.open(digest)


def test_damaged_index_is_ignored(path, cache, reads):
    info = import_dataset(path, None, cache)
    for text in ("", "[]", "{}", '{"identity": 1, "content": 2, "info": []}'):
        for entry in cache.index_dir.iterdir():
            entry.write_text(text)
        assert import_dataset(path, None, cache) == info
    assert len(reads) == 5


def test_left_over_files_of_a_killed_import_are_replaced(path, cache, monkeypatch):
    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(importer_module.SampleSink, "abandon", lambda self: None)
    with monkeypatch.context() as patch:
        patch.setattr(importer_module, "number_classes", killed)
        patch.setattr("crosstrain.data.cache.DataCache.adopt", lambda self, writer: writer.finish())
        with pytest.raises(KeyboardInterrupt):
            import_dataset(path, None, cache)
    assert list((cache.root / "data" / "tmp").iterdir())
    assert import_dataset(path, None, cache).samples == 12


def test_source_that_changes_while_it_is_read(path, cache, monkeypatch):
    real = importer_module.number_classes

    def meddle(*arguments):
        path.write_text(path.read_text() + "0,1,2,3,4,5,6,7,8,9\n")
        return real(*arguments)

    monkeypatch.setattr(importer_module, "number_classes", meddle)
    with pytest.raises(DataError, match="changed while it was read"):
        import_dataset(path, None, cache)
    assert not list(cache.index_dir.iterdir())


@pytest.mark.parametrize("method", ["append", "finish"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_full_disk(path, cache, monkeypatch, method, number):
    def full(self, *arguments):
        raise OSError(number, os.strerror(number), "/secret/path")

    with monkeypatch.context() as patch:
        patch.setattr(ArrayWriter, method, full)
        with pytest.raises(DataError) as caught:
            import_dataset(path, None, cache)
    assert ("no space left" in caught.value.message) == (number == errno.ENOSPC)
    assert caught.value.field == "cache"
    assert "secret" not in str(caught.value)
    assert [
        file for file in (cache.root / "data").rglob("*") if file.is_file() and file.suffix != ".lock"
    ] == []
    assert import_dataset(path, None, cache).samples == 12


LIMITED = """
import resource, sys
from crosstrain.data import DataCache, DataError, import_dataset
cache = DataCache(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    import_dataset(sys.argv[1], None, cache)
except DataError as error:
    print(error)
"""


def test_file_size_limit_of_the_system(tmp_path, cache):
    rows = np.zeros((4000, 50), dtype=int)
    rows[:, 0] = np.arange(4000) % 2
    path = tmp_path / "data.csv"
    path.write_text(csv_text(rows))
    command = [sys.executable, "-c", LIMITED, str(path), str(cache.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert "no space left" in done.stdout
    assert not list((cache.root / "data" / "tmp").iterdir())


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_cache_that_cannot_be_written(path, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(DataError, match="cannot be written"):
        DataCache(blocked)


def test_default_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CROSSTRAIN_CACHE", str(tmp_path / "a"))
    assert DataCache.default().root == tmp_path / "a"
    monkeypatch.delenv("CROSSTRAIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert DataCache.default().root == tmp_path / "b" / "crosstrain"


def test_two_importers_read_once(path, cache):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    arguments = (path, cache.root, barrier, results)
    workers = [context.Process(target=import_slowly, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert found[0][0] == found[1][0]
    assert sorted(reads for _, reads in found) == [0, 1]
    assert not list((cache.root / "data" / "tmp").iterdir())


def test_progress_reaches_the_end(path, cache):
    seen = []
    import_dataset(path, None, cache, lambda done, total: seen.append((done, total)))
    size = path.stat().st_size
    assert seen[-1] == (size, size)
    assert all(0 <= done <= total for done, total in seen)
