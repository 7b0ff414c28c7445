"""The way to a framework's store on another host: bytes arrive as they were sent, strangers get nothing."""

import os
import socket
import threading
import time

import pytest

from crosstrain_service.parallel.greeting import knock
from crosstrain_service.parallel.plan import LOOPBACK, free_ports
from crosstrain_service.parallel.relay import Entrance, Exit

SECRET = b"s" * 32


class Store:
    """Takes all that a client sends until it ends its side, and sends it back after a greeting."""

    def __init__(self, port):
        self.seen = 0
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, port))
        self._socket.listen(64)
        threading.Thread(target=self._run, name="store", daemon=True).start()

    def _run(self):
        try:
            while True:
                accepted = self._socket.accept()[0]
                self.seen += 1
                threading.Thread(target=self._serve, args=(accepted,), name="store", daemon=True).start()
        except OSError:
            pass

    @staticmethod
    def _serve(accepted):
        with accepted:
            accepted.sendall(b"store:" + everything(accepted))

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Way:
    """A store, and the relay to it."""

    def __init__(self, serve=True):
        (self.target,) = free_ports(1, LOOPBACK)
        self.store = Store(self.target) if serve else None
        self.exit = Exit(LOOPBACK, SECRET, self.target)
        self.entrance = Entrance((LOOPBACK, self.exit.port), SECRET)

    def call(self):
        return socket.create_connection((LOOPBACK, self.entrance.port), 20)

    def close(self):
        self.entrance.close()
        self.exit.close()
        if self.store is not None:
            self.store.close()


@pytest.fixture
def way():
    before = descriptors()
    opened = Way()
    yield opened
    opened.close()
    deadline = time.time() + 10
    while threads() or descriptors() > before:
        assert time.time() < deadline, (threads(), descriptors(), before)
        time.sleep(0.02)


def everything(connection):
    parts = []
    while True:
        part = connection.recv(65536)
        if not part:
            return b"".join(parts)
        parts.append(part)


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name in ("relay", "door", "greeting", "store")]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def asked(connection, data):
    """What the store makes of it; half of the connection is closed meanwhile."""
    with connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return everything(connection)


def test_many_connections_at_once(way):
    data = [os.urandom(1 << 18) + bytes([number]) for number in range(40)]
    found = {}
    callers = [threading.Thread(target=lambda n=number: found.update({n: asked(way.call(), data[n])}))
               for number in range(len(data))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert found == {number: b"store:" + sent for number, sent in enumerate(data)}


def test_who_comes_early_waits():
    way = Way(serve=False)
    with way.call() as connection:
        connection.sendall(b"early")
        time.sleep(0.3)
        way.store = Store(way.target)
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection) == b"store:early"
    way.close()


def test_strangers_get_nothing_and_hold_nobody_up(way):
    address = (LOOPBACK, way.exit.port)
    silent = [socket.create_connection(address) for _ in range(20)]
    assert knock(address, b"another secret of 32 bytes in all") is None
    with socket.create_connection(address, 20) as stranger:
        stranger.sendall(b"GET /scope/key HTTP/1.1\r\n\r\n" * 20)
        try:
            answer = everything(stranger)
        except ConnectionResetError:
            answer = b""
    assert b"store:" not in answer
    begin = time.time()
    assert asked(way.call(), b"mine") == b"store:mine"
    assert time.time() - begin < 4
    assert way.store.seen == 1
    for stranger in silent:
        stranger.close()


def test_a_client_that_vanishes_is_forgotten(way):
    for _ in range(5):
        connection = way.call()
        connection.sendall(b"x")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    deadline = time.time() + 10
    while way.exit._carried or way.entrance._carried:
        assert time.time() < deadline
        time.sleep(0.02)
    assert asked(way.call(), b"next") == b"store:next"


@pytest.mark.parametrize("side", ["exit", "entrance"])
def test_the_end_of_a_run_ends_what_is_open(way, side):
    with way.call() as connection:
        connection.sendall(b"x")
        while way.store.seen == 0:
            time.sleep(0.02)
        getattr(way, side).close()
        try:
            assert everything(connection) in (b"", b"store:x")
        except ConnectionResetError:
            pass
    if side == "entrance":
        with pytest.raises(OSError):
            way.call()
