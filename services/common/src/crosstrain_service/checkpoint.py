"""Checkpoints: complete or absent, never torn.

A checkpoint is a safetensors file named ``<next step>-<SHA-256>.safetensors``, written
aside, synced and renamed. A file whose bytes do not have the digest of its name is ignored.
"""

import errno
import hashlib
import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from . import weights
from .errors import CrosstrainError

_NAME = re.compile(r"^(\d{12})-([0-9a-f]{64})\.safetensors$")
#: Older checkpoints kept beside the newest, in case that is damaged.
KEEP = 2


class Position(NamedTuple):
    """Where training stands: everything of the loop that must survive a restart."""

    next_step: int = 0
    loss_sum: float = 0.0  # over the samples of the unfinished epoch
    loss_samples: int = 0
    epoch_seconds: float = 0.0  # of the unfinished epoch
    train_seconds: float = 0.0
    best_loss: Optional[float] = None
    bad_epochs: int = 0
    stopped_early: bool = False
    test_loss: Optional[float] = None
    test_accuracy: Optional[float] = None


class CheckpointStore:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def save(self, position: Position, state: Dict[str, np.ndarray]) -> str:
        """Writes a checkpoint and returns its digest; raises ``STORAGE_FULL``."""
        data = weights.to_bytes(state, {"position": json.dumps(position._asdict())})
        digest = hashlib.sha256(data).hexdigest()
        path = os.path.join(self._folder, "%012d-%s.safetensors" % (position.next_step, digest))
        temporary = os.path.join(self._folder, ".incoming")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
            handle = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            _remove(temporary)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CrosstrainError("STORAGE_FULL", "no room for a checkpoint of %d bytes" % len(data)) from error
            raise
        for name in self._names()[KEEP:]:
            _remove(os.path.join(self._folder, name))
        return digest

    def newest(self) -> Optional[Tuple[Position, Dict[str, np.ndarray], str]]:
        """The newest whole checkpoint (position, state, digest), or None."""
        for name in self._names():
            match = _NAME.match(name)
            assert match is not None
            with open(os.path.join(self._folder, name), "rb") as file:
                data = file.read()
            if hashlib.sha256(data).hexdigest() != match.group(2):
                continue
            state, metadata = weights.from_bytes(data)
            fields: Dict[str, Any] = json.loads(metadata["position"])
            known = {key: value for key, value in fields.items() if key in Position._fields}
            return Position(**known), state, match.group(2)
        return None

    def newest_step(self) -> int:
        """Step of the newest checkpoint by name, -1 without one (cheap, unchecked)."""
        names = self._names()
        return int(names[0][:12]) if names else -1

    def _names(self) -> List[str]:
        return sorted((name for name in os.listdir(self._folder) if _NAME.match(name)), reverse=True)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
