"""The way from every host to the place where a framework's processes meet.

PyTorch's and Horovod's key-value stores let in whoever connects. So rank 0 serves its store on the loopback interface
of its host alone, and the launchers carry the connections of the other hosts there: the leader's holds the
:class:`Exit`, at whose door one must know the run's secret, every other one an :class:`Entrance`, a port of its own
loopback interface. Who comes through reaches this one store and nothing else.

What passes is not encrypted.
"""

import abc
import socket
import threading
import time
from typing import Optional, Set

from .greeting import KNOCK_SECONDS, Address, Door, knock, plain
from .plan import LOOPBACK

#: Connections carried at the same time; each takes two threads.
MOST = 512
_CHUNK = 1 << 16
_PAUSE_SECONDS = 0.05
_POLL_SECONDS = 0.2


class Relay(abc.ABC):
    """Carries connections, each in threads of its own, until it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._carried = 0
        self._ends: Set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._run, name="relay", daemon=True).start()

    @abc.abstractmethod
    def _accept(self) -> Optional[socket.socket]:
        """The next newcomer; None if nobody came within a moment."""

    @abc.abstractmethod
    def _connect(self) -> Optional[socket.socket]:
        """A connection to where newcomers want to go; None if there is none."""

    def _run(self) -> None:
        while not self._closed:
            try:
                newcomer = self._accept()
                if newcomer is not None:
                    threading.Thread(target=self._carry, args=(newcomer,), name="relay", daemon=True).start()
            except (OSError, RuntimeError):
                if not self._closed:
                    time.sleep(_PAUSE_SECONDS)  # too many files or threads

    def _carry(self, newcomer: socket.socket) -> None:
        with newcomer:
            with self._lock:
                if self._carried >= MOST:
                    return
                self._carried += 1
            try:
                other = self._connect()
                if other is not None:
                    with other:
                        self._between(newcomer, other)
            except (OSError, RuntimeError):
                pass  # as in ``_run``; this connection alone is lost
            finally:
                with self._lock:
                    self._carried -= 1

    def _between(self, one: socket.socket, other: socket.socket) -> None:
        """Carries bytes both ways until both sides have ended, or the relay is closed."""
        ends = {one, other}
        with self._lock:
            if self._closed:
                return
            self._ends |= ends
        try:
            back = threading.Thread(target=_pump, args=(other, one), name="relay", daemon=True)
            back.start()
            _pump(one, other)
            back.join()
        finally:
            with self._lock:
                self._ends -= ends

    def close(self) -> None:
        """Ends all connections; the threads follow."""
        with self._lock:
            self._closed = True
            for end in self._ends:
                _end(end)


class Exit(Relay):
    """The leader's side: brings those who know the secret to a port of the loopback interface.

    ``host``: own address, at a free port of which the door is. Those who come before anybody listens at
    ``target`` wait.
    """

    def __init__(self, host: str, secret: bytes, target: int) -> None:
        self._door = Door((host, 0), secret)
        self._target = target
        super().__init__()

    @property
    def port(self) -> int:
        """The door's port."""
        return self._door.port

    def _accept(self) -> Optional[socket.socket]:
        connection = self._door.accept(_POLL_SECONDS)
        return None if connection is None else plain(connection)

    def _connect(self) -> Optional[socket.socket]:
        while not self._closed:
            found = _direct(socket.socket())
            try:
                found.connect((LOOPBACK, self._target))
                # The system may choose a port that nobody listens at yet for this end, which then meets itself.
                if found.getsockname() != found.getpeername():
                    return found
            except OSError:
                pass
            found.close()
            time.sleep(_PAUSE_SECONDS)
        return None

    def close(self) -> None:
        super().close()
        self._door.close()


class Entrance(Relay):
    """Another member's side: a port of the loopback interface, from which all connections go to the exit."""

    def __init__(self, exit_address: Address, secret: bytes) -> None:
        self._exit = exit_address
        self._secret = secret
        self._socket = socket.socket()
        self._socket.bind((LOOPBACK, 0))
        self._socket.listen(128)
        super().__init__()

    @property
    def port(self) -> int:
        """Where the framework's processes of this host meet the others."""
        return int(self._socket.getsockname()[1])

    def _accept(self) -> Optional[socket.socket]:
        return _direct(self._socket.accept()[0])

    def _connect(self) -> Optional[socket.socket]:
        deadline = time.monotonic() + KNOCK_SECONDS
        while not self._closed and time.monotonic() < deadline:
            connection = knock(self._exit, self._secret)
            if connection is not None:
                return plain(connection)
            time.sleep(_PAUSE_SECONDS)
        return None

    def close(self) -> None:
        super().close()
        _end(self._socket)  # wakes who waits at it
        self._socket.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Passes on what comes, to the end of one direction; a connection that breaks ends both."""
    try:
        while True:
            data = source.recv(_CHUNK)
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)
    except OSError:
        _end(source)
        _end(sink)


def _direct(found: socket.socket) -> socket.socket:
    """The connection without delays for small messages."""
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def _end(found: socket.socket) -> None:
    """Ends a connection, or waiting for one, for every thread that uses it."""
    try:
        found.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
