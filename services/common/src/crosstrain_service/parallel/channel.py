"""Messages between the processes of a run: a star around process 0.

The processes of one host meet at a Unix socket in a folder of their own; over several hosts at a port of
the leader's address. Either way a newcomer must know the run's secret. Messages are bytes and never unpickled.
"""

import json
import os
import queue
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, Callable, Dict, Optional

from ..errors import CrosstrainError
from ..rundir import write_file
from .greeting import Door, knock

#: Time that all processes may take to meet after their start, seconds: imports of frameworks lie between.
MEET_SECONDS = 600.0
#: File in the shared folder that says where process 0 listens.
ADDRESS = "channel.json"
_POLL_SECONDS = 0.02

#: Kinds of messages, their first byte: an answer for process 0, a word from it, records of steps, a step to
#: save a checkpoint after.
ANSWER, WORD, RECORDS, CHECKPOINT = b"A", b"W", b"R", b"C"

#: Takes a message that nobody waits for: rank, payload.
Handler = Callable[[int, bytes], None]


class Channel:
    """One end of the star. ``handlers`` by kind are called in the receiving thread."""

    def __init__(self, rank: int, size: int, handlers: Dict[bytes, Handler]) -> None:
        self.rank = rank
        self.size = size
        self._handlers = handlers
        self._connections: Dict[int, Connection] = {}
        self._inbox: Dict[int, queue.Queue[Optional[bytes]]] = {}
        self._sending = threading.Lock()

    def _attach(self, rank: int, connection: Connection) -> None:
        self._connections[rank] = connection
        self._inbox[rank] = queue.Queue()
        threading.Thread(target=self._receive, args=(rank, connection), name="rank %d" % rank, daemon=True).start()

    def _receive(self, rank: int, connection: Connection) -> None:
        try:
            while True:
                message = connection.recv_bytes()
                kind, payload = message[:1], message[1:]
                if kind in (ANSWER, WORD):
                    self._inbox[rank].put(payload)
                else:
                    self._handlers[kind](rank, payload)
        except (EOFError, OSError):
            # The launcher says which rank was lost and why; whoever waits here must not wait for ever.
            self._inbox[rank].put(None)

    def send(self, rank: int, kind: bytes, payload: bytes) -> None:
        """Sends one message to process 0, or from it to another one."""
        try:
            with self._sending:
                self._connections[rank].send_bytes(kind + payload)
        except OSError as error:
            raise _lost(rank) from error

    def receive(self, rank: int) -> bytes:
        """The next answer or word of a process."""
        payload = self._inbox[rank].get()
        if payload is None:
            self._inbox[rank].put(None)
            raise _lost(rank)
        return payload

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()


def _lost(rank: int) -> CrosstrainError:
    return CrosstrainError("RANK_LOST", "rank %d does not answer any more" % rank)


def listen(size: int, folder: str, host: str, secret: bytes, handlers: Dict[bytes, Handler]) -> Channel:
    """Process 0: waits until all others are there. ``host``: own address over several hosts, else empty."""
    channel = Channel(0, size, handlers)
    door = Door((host, 0) if host else os.path.join(folder, "channel"), secret)
    try:
        _publish(folder, [host, door.port] if host else os.path.join(folder, "channel"))
        deadline = time.time() + MEET_SECONDS
        while len(channel._connections) < size - 1:
            connection = door.accept(max(0.0, deadline - time.time()) or 0.001)
            if connection is None:
                if time.time() > deadline:
                    raise CrosstrainError("RANK_LOST", "only %d of %d ranks came within %d seconds" % (
                        len(channel._connections) + 1, size, MEET_SECONDS))
                continue
            rank = int(connection.recv_bytes().decode("ascii"))
            if not 0 < rank < size or rank in channel._connections:
                connection.close()
                continue
            channel._attach(rank, connection)
    finally:
        door.close()
    return channel


def join(rank: int, size: int, folder: str, secret: bytes, handlers: Dict[bytes, Handler]) -> Channel:
    """Any other process: finds process 0 and says who it is."""
    deadline = time.time() + MEET_SECONDS
    while time.time() < deadline:
        address = _address(folder)
        if address is not None:
            connection = knock(address, secret)
            if connection is not None:
                connection.send_bytes(str(rank).encode("ascii"))
                channel = Channel(rank, size, handlers)
                channel._attach(0, connection)
                return channel
        time.sleep(_POLL_SECONDS)
    raise CrosstrainError("RANK_LOST", "rank 0 was not found within %d seconds" % MEET_SECONDS)


def _publish(folder: str, address: Any) -> None:
    write_file(os.path.join(folder, ADDRESS), json.dumps(address).encode("utf-8"))


def _address(folder: str) -> Any:
    try:
        with open(os.path.join(folder, ADDRESS), "rb") as file:
            value = json.loads(file.read().decode("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return tuple(value) if isinstance(value, list) else value
