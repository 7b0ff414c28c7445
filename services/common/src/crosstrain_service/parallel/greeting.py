"""Listening and connecting between processes that share a secret.

The challenge by HMAC is that of ``multiprocessing.connection``, but with time limits: a stranger who connects and
stays silent must not hold up a run.
"""

import os
import queue
import socket
import struct
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, Optional, Sequence, Tuple, Union

#: Time to wait for an answer at a door: one whose machine has vanished says nothing, seconds.
KNOCK_SECONDS = 20.0
#: Newcomers greeted at the same time.
_GREETED_AT_ONCE = 256
_PAUSE_SECONDS = 0.05
#: Time a newcomer has to prove that it knows the secret, seconds.
GREETING_SECONDS = 5.0

Address = Union[str, Tuple[str, int]]


class Door:
    """A listening socket: a Unix socket at a path, or a port of an address (0: any free one).

    Newcomers are greeted side by side, so that strangers do not keep others waiting.
    """

    def __init__(self, address: Address, secret: bytes) -> None:
        self._secret = secret
        if isinstance(address, str):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(address)
        else:
            family = socket.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.socket(family)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
        self._socket.listen(64)
        self._greeted: queue.Queue[Connection] = queue.Queue()
        self._places = threading.BoundedSemaphore(_GREETED_AT_ONCE)
        self._closed = False
        threading.Thread(target=self._open, name="door", daemon=True).start()

    @property
    def port(self) -> int:
        """Number of the port."""
        return int(self._socket.getsockname()[1])

    def accept(self, seconds: float) -> Optional[Connection]:
        """The next one who knows the secret; None if nobody came in time."""
        try:
            return self._greeted.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def _open(self) -> None:
        while not self._closed:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                if not self._closed:
                    time.sleep(_PAUSE_SECONDS)  # too many files are open, for example
                continue
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(accepted,), name="greeting", daemon=True).start()
            else:
                accepted.close()

    def _greet(self, accepted: socket.socket) -> None:
        try:
            connection = _greeted(accepted, self._secret, GREETING_SECONDS, (deliver_challenge, answer_challenge))
        finally:
            self._places.release()
        if connection is not None:
            self._greeted.put(connection)
            if self._closed:
                self._dismiss()

    def _dismiss(self) -> None:
        """Closes connections that nobody will ask for."""
        try:
            while True:
                self._greeted.get_nowait().close()
        except queue.Empty:
            pass

    def close(self) -> None:
        """Closes the socket."""
        self._closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who waits at it
        except OSError:
            pass
        self._socket.close()
        self._dismiss()


def knock(address: Address, secret: bytes) -> Optional[Any]:
    """A connection to a door; None if nobody is there (yet) or the secret is another one."""
    try:
        if isinstance(address, str):
            found = socket.socket(socket.AF_UNIX)
            try:
                found.connect(address)
            except OSError:
                found.close()
                raise
        else:
            found = socket.create_connection(address, KNOCK_SECONDS)
    except OSError:
        return None
    return _greeted(found, secret, KNOCK_SECONDS, (answer_challenge, deliver_challenge))


def knock_until(address: Address, secret: bytes, deadline: float, pause: float = 0.1) -> Optional[Any]:
    """The same again and again until a time by ``time.time()``."""
    while True:
        connection = knock(address, secret)
        if connection is not None or time.time() >= deadline:
            return connection
        time.sleep(pause)


def _greeted(found: socket.socket, secret: bytes, seconds: float, steps: Sequence[Any]) -> Optional[Connection]:
    """A connection whose other side knows the secret; None, and closed, if it does not show that in time."""
    _limit(found, seconds)
    _keep_alive(found)
    connection = Connection(found.detach())
    try:
        for step in steps:
            step(connection, secret)
        _unlimited(connection)
    except (AuthenticationError, EOFError, OSError, ValueError, AssertionError):
        connection.close()
        return None
    return connection


def _limit(accepted: socket.socket, seconds: float) -> None:
    value = struct.pack("ll", int(seconds), 0)
    accepted.setblocking(True)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)


def plain(connection: Connection) -> socket.socket:
    """The socket of a connection for bytes without frames; the connection itself is closed."""
    try:
        return _duplicate(connection)
    finally:
        connection.close()


def _duplicate(connection: Connection) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))


def _unlimited(connection: Connection) -> None:
    duplicate = _duplicate(connection)
    try:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    finally:
        duplicate.close()


def _keep_alive(accepted: socket.socket) -> None:
    if accepted.family != socket.AF_UNIX:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
