"""The processes of a run as the task of each of them sees them.

A team of one does everything alone and costs nothing. Every method that communicates is called by all
processes at the same place of their work.
"""

import abc
import json
import struct
import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from .. import weights
from ..engine import Arrays
from ..training import Execution
from . import progress
from .channel import ANSWER, CHECKPOINT, RECORDS, WORD, Channel, Handler, join, listen

_LENGTH = struct.Struct("<I")


class Team(abc.ABC):
    """Gathering at process 0 and words from it."""

    #: This process and the number of processes.
    rank = 0
    size = 1
    #: Share of every batch that this process works on, and number of shares.
    share = 0
    shares = 1

    @property
    def leads(self) -> bool:
        """Whether this is process 0, which records and decides."""
        return self.rank == 0

    @abc.abstractmethod
    def gather(self, payload: bytes) -> List[bytes]:
        """What every process gave, in order of ranks; empty but in process 0."""

    @abc.abstractmethod
    def tell(self, payload: Optional[bytes]) -> bytes:
        """What process 0 said; the others give None."""

    def first_of_shares(self) -> List[int]:
        """The first rank of every share."""
        return [share * self.size // self.shares for share in range(self.shares)]

    def gather_arrays(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> List[Tuple[Arrays, Any]]:
        """Arrays of the first process of every share, in order of shares; empty but in process 0.

        A number that the first process does not know (None) is that of the next one of its share.
        """
        head = json.dumps(dict(numbers)).encode("utf-8")
        mine = self.rank in self.first_of_shares()
        body = weights.to_bytes(arrays) if mine else b""
        parts = self.gather(_LENGTH.pack(len(head)) + head + body)
        if not parts:
            return []
        firsts = self.first_of_shares()
        return [_unpack(parts[first:after]) for first, after in zip(firsts, firsts[1:] + [self.size])]

    def tell_json(self, value: Any) -> Any:
        """The value that process 0 has."""
        said = self.tell(json.dumps(value).encode("utf-8") if self.leads else None)
        return json.loads(said.decode("utf-8"))

    def close(self) -> None:  # noqa: B027
        """Leaves the team."""


def _unpack(parts: List[bytes]) -> Tuple[Arrays, Any]:
    """Arrays of the first of the processes of a share, and numbers of all."""
    numbers: Dict[str, Any] = {}
    body = b""
    for index, part in enumerate(parts):
        (length,) = _LENGTH.unpack_from(part)
        start = _LENGTH.size
        for name, value in json.loads(part[start:start + length].decode("utf-8")).items():
            if numbers.get(name) is None:
                numbers[name] = value
        if index == 0:
            body = part[start + length:]
    return weights.from_bytes(body)[0], numbers


class Alone(Team):
    """One process."""

    def gather(self, payload: bytes) -> List[bytes]:
        return [payload]

    def tell(self, payload: Optional[bytes]) -> bytes:
        assert payload is not None
        return payload

    def gather_arrays(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> List[Tuple[Arrays, Any]]:
        return [(dict(arrays), dict(numbers))]

    def tell_json(self, value: Any) -> Any:
        return value


#: The team of every run with one process.
ALONE = Alone()


class Together(Team):
    """Several processes over a channel."""

    def __init__(self, channel: Channel, execution: Execution, listeners: "Listeners") -> None:
        self._channel = channel
        self.listeners = listeners
        self.rank = channel.rank
        self.size = channel.size
        self.share = execution.data_share
        self.shares = execution.data_shares

    def gather(self, payload: bytes) -> List[bytes]:
        progress.joins()
        if self.rank:
            self._channel.send(0, ANSWER, payload)
            return []
        return [payload] + [self._channel.receive(rank) for rank in range(1, self.size)]

    def tell(self, payload: Optional[bytes]) -> bytes:
        progress.joins()
        if self.rank:
            return self._channel.receive(0)
        assert payload is not None
        for rank in range(1, self.size):
            self._channel.send(rank, WORD, payload)
        return payload

    def send_records(self, payload: bytes) -> None:
        """Gives process 0 records of steps; does not wait."""
        self._channel.send(0, RECORDS, payload)

    def ask_for_checkpoint(self, after_step: int) -> None:
        """Process 0 tells all others after which step to save a checkpoint."""
        for rank in range(1, self.size):
            self._channel.send(rank, CHECKPOINT, b"%d" % after_step)

    def close(self) -> None:
        self._channel.close()


class Listeners:
    """Messages that arrive while nobody waits for them; kept until someone asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: List[Tuple[int, bytes]] = []
        self.checkpoint_after = -1

    def handlers(self) -> Dict[bytes, Handler]:
        """What a channel calls."""
        return {RECORDS: self._add, CHECKPOINT: self._ask}

    def _add(self, rank: int, payload: bytes) -> None:
        with self._lock:
            self._records.append((rank, payload))

    def _ask(self, rank: int, payload: bytes) -> None:
        self.checkpoint_after = int(payload)

    def take_records(self) -> List[Tuple[int, bytes]]:
        """Records that arrived since the last call: rank, payload."""
        with self._lock:
            found, self._records = self._records, []
            return found


def meet(execution: Execution, secret: bytes) -> Team:
    """The team of a process, once all are there."""
    ranks = execution.ranks
    if ranks.size == 1:
        return ALONE
    listeners = Listeners()
    if ranks.rank == 0:
        host = ranks.hosts[0] if ranks.members > 1 else ""
        channel = listen(ranks.size, ranks.folder, host, secret, listeners.handlers())
    else:
        channel = join(ranks.rank, ranks.size, ranks.folder, secret, listeners.handlers())
    return Together(channel, execution, listeners)
