"""The artifact store in a directory and in memory, and without room."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosstrain.artifacts import ArtifactStore
from crosstrain_service.errors import CrosstrainError
from doubles.world import npy


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    url = str(tmp_path / "store") if request.param == "directory" else f"memory://{tmp_path.name}"
    return ArtifactStore(url, tmp_path / "incoming")


def test_bytes_come_back(store: ArtifactStore) -> None:
    data = np.random.RandomState(1).bytes(1_200_000)
    digest = store.put(data)
    assert digest in store
    assert store.size(digest) == len(data)
    assert store.get(digest) == data
    assert b"".join(store.read(digest, 1_000_000)) == data[1_000_000:]
    assert store.write(digest, len(data), [b"is not read"]) is True
    assert store.missing([digest, "0" * 64, "0" * 64]) == ["0" * 64]


def test_wrong_bytes_are_not_kept(store: ArtifactStore, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    with pytest.raises(CrosstrainError) as caught:
        store.write(digest, 5, [b"wrong"])
    assert (caught.value.reason, caught.value.code) == ("ARTIFACT_CORRUPT", "INVALID_ARGUMENT")
    assert digest not in store
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_failure_in_the_middle_leaves_nothing(store: ArtifactStore, tmp_path: Path) -> None:
    def chunks() -> Any:
        yield b"half"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        store.write("0" * 64, 8, chunks())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_files_are_taken_over(store: ArtifactStore, tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    assert store.add_file(source, digest) is False
    assert store.add_file(source, digest) is True
    assert store.get(digest) == b"content"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_is_said_so(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(*_: object) -> None:
        raise OSError(number, "full")

    monkeypatch.setattr(store, "_publish", full)
    with pytest.raises(CrosstrainError) as caught:
        store.put(b"x")
    assert (caught.value.reason, caught.value.code) == ("STORAGE_FULL", "RESOURCE_EXHAUSTED")


def test_a_real_write_error_leaves_nothing(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
from crosstrain.artifacts import ArtifactStore
from crosstrain_service.errors import CrosstrainError
try:
    ArtifactStore(sys.argv[1]).put(b"x" * (2 << 20))
except CrosstrainError as error:
    print(error.reason)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    path = ":".join(entry for entry in sys.path if entry)
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": path}, check=True)
    assert done.stdout.strip() == "STORAGE_FULL"
    assert [entry for entry in tmp_path.rglob("*") if entry.is_file()] == []


def test_an_unknown_kind_of_storage() -> None:
    with pytest.raises(CrosstrainError) as caught:
        ArtifactStore("nonsense://x")
    assert caught.value.reason == "ENVIRONMENT"


def test_headers_of_arrays(store: ArtifactStore) -> None:
    digest = store.put(npy(np.zeros((3, 2), dtype="<f4")))
    assert store.array_header(digest, "f") == ((3, 2), np.dtype("<f4"))
    labels = np.arange(200_000)
    blocks = list(store.array_blocks(store.put(npy(labels)), "f"))
    assert len(blocks) > 1
    assert np.array_equal(np.concatenate(blocks), labels)


@pytest.mark.parametrize("data", [
    b"",
    b"nonsense" * 10,
    npy(np.zeros(100))[:-8],
    npy(np.zeros(100)) + b"more",
    npy(np.asfortranarray(np.zeros((2, 3)))),
    b"\x93NUMPY\x01\x00\x10\x00{'descr': '|O'}\n",
])
def test_what_is_no_plain_array_is_refused(store: ArtifactStore, data: bytes) -> None:
    with pytest.raises(CrosstrainError) as caught:
        store.array_header(store.put(data), "train.pixels_digest")
    assert (caught.value.reason, caught.value.field) == ("INVALID_DATA", "train.pixels_digest")


def test_storage_is_tried_and_nothing_is_left(store: ArtifactStore, tmp_path: Path) -> None:
    store.check()
    store.check()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_storage_that_refuses_is_told_in_its_own_words(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, reason, said in (
        (PermissionError("Access Denied"), "ENVIRONMENT", "PermissionError: Access Denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "STORAGE_FULL", "no room"),
    ):

        def refuse(*_: object, error: OSError = error) -> None:
            raise error

        monkeypatch.setattr(store._fs, "pipe_file", refuse)
        with pytest.raises(CrosstrainError) as caught:
            store.check()
        assert caught.value.reason == reason
        assert said in caught.value.message
