"""Listening and connecting between processes that share a secret.

The challenge by HMAC is that of ``multiprocessing.connection``, but with time limits: a stranger who connects and
stays silent must not hold up a run.
"""

import os
import socket
import struct
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any, Optional, Tuple, Union

#: Time a newcomer has to prove that it knows the secret, seconds.
GREETING_SECONDS = 5.0

Address = Union[str, Tuple[str, int]]


class Door:
    """A listening socket: a Unix socket at a path, or a port of an address (0: any free one)."""

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

    @property
    def port(self) -> int:
        """Number of the port."""
        return int(self._socket.getsockname()[1])

    def accept(self, seconds: float) -> Optional[Connection]:
        """The next one who knows the secret; None if nobody came in time, or a stranger did."""
        self._socket.settimeout(seconds)
        try:
            accepted, _ = self._socket.accept()
        except (socket.timeout, InterruptedError):
            return None
        _limit(accepted, GREETING_SECONDS)
        _keep_alive(accepted)
        connection = Connection(accepted.detach())
        try:
            deliver_challenge(connection, self._secret)  # type: ignore[attr-defined]
            answer_challenge(connection, self._secret)  # type: ignore[attr-defined]
        except (AuthenticationError, EOFError, OSError, ValueError, AssertionError):
            connection.close()
            return None
        _unlimited(connection)
        return connection

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def knock(address: Address, secret: bytes) -> Optional[Any]:
    """A connection to a door; None if nobody is there (yet) or the secret is another one."""
    try:
        return Client(address, authkey=secret)
    except (AuthenticationError, EOFError, OSError):
        return None


def knock_until(address: Address, secret: bytes, deadline: float, pause: float = 0.1) -> Optional[Any]:
    """The same again and again until a time by ``time.time()``."""
    while True:
        connection = knock(address, secret)
        if connection is not None or time.time() >= deadline:
            return connection
        time.sleep(pause)


def _limit(accepted: socket.socket, seconds: float) -> None:
    value = struct.pack("ll", int(seconds), 0)
    accepted.setblocking(True)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)


def _unlimited(connection: Connection) -> None:
    duplicate = socket.socket(fileno=os.dup(connection.fileno()))
    try:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    finally:
        duplicate.close()


def _keep_alive(accepted: socket.socket) -> None:
    if accepted.family != socket.AF_UNIX:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
