"""Checkpoints are complete or absent."""

import os

import numpy as np

from crosstrain_service.checkpoint import CheckpointStore, Position


def state(value):
    return {"a": np.full((2, 3), value, np.float32), "updates": np.array([value], np.int64)}


def test_newest_whole_checkpoint_is_found(tmp_path):
    store = CheckpointStore(str(tmp_path))
    assert store.newest() is None and store.newest_step() == -1
    for step in (3, 9, 27):
        digest = store.save(Position(next_step=step, loss_sum=0.1, best_loss=None), state(step))
    position, arrays, found = store.newest()
    assert position == Position(next_step=27, loss_sum=0.1) and found == digest
    assert arrays["a"].dtype == np.float32 and (arrays["a"] == 27).all() and arrays["updates"][0] == 27
    assert store.newest_step() == 27


def test_old_checkpoints_are_removed_but_one_spare_is_kept(tmp_path):
    store = CheckpointStore(str(tmp_path))
    for step in range(5):
        store.save(Position(next_step=step), state(step))
    assert len([name for name in os.listdir(str(tmp_path)) if name.endswith(".safetensors")]) == 2


def test_torn_or_damaged_checkpoint_is_never_loaded(tmp_path):
    store = CheckpointStore(str(tmp_path))
    store.save(Position(next_step=1), state(1))
    store.save(Position(next_step=2), state(2))
    newest = sorted(name for name in os.listdir(str(tmp_path)) if name.endswith(".safetensors"))[-1]
    path = str(tmp_path / newest)
    os.truncate(path, os.path.getsize(path) - 1)
    assert store.newest()[0].next_step == 1
    (tmp_path / ".incoming").write_bytes(b"half a checkpoint")
    assert store.newest()[0].next_step == 1
