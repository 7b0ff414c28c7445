"""Services that train together over several hosts: their launchers, connected to the one of the leader.

Each message is one JSON object. The members greet the leader with their address, free ports and number of
processes; it answers with the plan, later with where rank 0 listens, and at the end with the outcome. Both sides
send a beat every second: whoever is not heard of for :data:`LOST_SECONDS` is lost.
"""

import json
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, Dict, List, NamedTuple, Optional

from ..errors import CrosstrainError
from .greeting import Door

BEAT_SECONDS = 1.0
#: Silence after which a member counts as lost.
LOST_SECONDS = 5.0


class Link:
    """One connection between two launchers, with beats in both directions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._inbox: List[Dict[str, Any]] = []
        self._heard = time.monotonic()
        self._broken = False
        self._closed = False
        for target in (self._receive, self._beat):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def _receive(self) -> None:
        try:
            while True:
                message = json.loads(self._connection.recv_bytes().decode("utf-8"))
                self._heard = time.monotonic()
                if message:
                    self._inbox.append(message)
        except (EOFError, OSError, ValueError):
            self._broken = True

    def _beat(self) -> None:
        while not self._closed and not self._broken:
            self.send({})
            time.sleep(BEAT_SECONDS)

    def send(self, message: Dict[str, Any]) -> None:
        """Sends a message; one that cannot be sent is noticed as silence."""
        try:
            with self._sending:
                self._connection.send_bytes(json.dumps(message).encode("utf-8"))
        except OSError:
            self._broken = True

    def take(self) -> List[Dict[str, Any]]:
        """Messages that have arrived since the last call."""
        found, self._inbox = self._inbox, []
        return found

    def await_message(self, seconds: float) -> Optional[Dict[str, Any]]:
        """The next message; None if none came in time or the other side is lost."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._inbox:
                return self._inbox.pop(0)
            if self.lost:
                return None
            time.sleep(0.02)
        return None

    @property
    def lost(self) -> str:
        """What is wrong with the other side; empty while it is there."""
        if self._broken and not self._inbox:
            return "the connection to it was closed"
        silent = time.monotonic() - self._heard
        return "nothing was heard of it for %.0f seconds" % silent if silent > LOST_SECONDS else ""

    def close(self) -> None:
        """Ends the connection."""
        self._closed = True
        try:
            self._connection.close()
        except OSError:
            pass


class Greeting(NamedTuple):
    """What a member brings."""

    member: int
    host: str
    ports: List[int]
    processes: int

    def message(self) -> Dict[str, Any]:
        """The message that says so."""
        return dict(self._asdict())

    @classmethod
    def of(cls, message: Dict[str, Any]) -> "Greeting":
        """What a message says; raises ``KeyError``, ``TypeError`` or ``ValueError`` if it is no greeting."""
        ports = [int(port) for port in message["ports"]]
        return cls(int(message["member"]), str(message["host"]), ports, int(message["processes"]))


class Guest(NamedTuple):
    """A member that has greeted the leader."""

    greeting: Greeting
    link: Link


def greet_all(door: Door, members: int, patience: Optional[float] = None) -> Dict[int, Guest]:
    """Waits for all other members; at most ``patience`` seconds after the first step, then without the missing."""
    found: Dict[int, Guest] = {}
    deadline = None if patience is None else time.monotonic() + patience
    while len(found) < members - 1 and (deadline is None or time.monotonic() < deadline):
        for member in [member for member, guest in found.items() if guest.link.lost]:
            found.pop(member).link.close()
        connection = door.accept(0.5)
        if connection is None:
            continue
        link = Link(connection)
        message = link.await_message(LOST_SECONDS)
        try:
            greeting = Greeting.of(message or {})
        except (KeyError, TypeError, ValueError):
            link.close()
            continue
        if not 0 < greeting.member < members:
            link.close()
            continue
        if greeting.member in found:
            found.pop(greeting.member).link.close()
        found[greeting.member] = Guest(greeting, link)
    return found


def error_to_json(error: Optional[CrosstrainError]) -> Optional[List[str]]:
    """An error as it is sent between launchers."""
    return None if error is None else [error.reason, error.message, error.field]


def error_from_json(value: Optional[List[str]]) -> Optional[CrosstrainError]:
    """The error that was sent."""
    return None if value is None else CrosstrainError(*value)
