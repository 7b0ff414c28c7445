"""The artifact store: whole or absent, and nothing is left behind."""

import os
import time

import pytest

from crosstrain_service.artifacts import ArtifactStore
from crosstrain_service.errors import CrosstrainError


def files(folder):
    return sorted(name for _, _, names in os.walk(str(folder)) for name in names)


def test_stream_that_breaks_off_leaves_nothing(tmp_path):
    store = ArtifactStore(str(tmp_path))
    digest = store.put(b"whole")

    def broken():
        yield b"wh"
        raise RuntimeError("the client has gone")

    with pytest.raises(RuntimeError):
        store.write("0" * 64, 5, broken())
    assert files(tmp_path) == [digest] and store.get(digest) == b"whole"
    assert store.write(digest, 5, broken()) is True, "what is there is not read again"
    assert list(store.read(digest, 3)) == [b"le"] and store.size(digest) == 5


def test_damage_is_found(tmp_path):
    store = ArtifactStore(str(tmp_path))
    digest = store.put(b"whole")
    with open(store.path(digest), "r+b") as file:
        file.write(b"W")
    with pytest.raises(CrosstrainError) as caught:
        store.get(digest)
    assert caught.value.reason == "ARTIFACT_CORRUPT"


def test_abandoned_files_are_removed_a_day_later(tmp_path):
    store = ArtifactStore(str(tmp_path))
    digest = store.put(b"whole")
    for name, age in (("old", 90000), ("new", 10)):
        path = os.path.join(os.path.dirname(store.path(digest)), ".incoming-" + name)
        with open(path, "wb"):
            pass
        os.utime(path, (time.time() - age,) * 2)
    store.remove_abandoned()
    assert files(tmp_path) == sorted([".incoming-new", digest])
