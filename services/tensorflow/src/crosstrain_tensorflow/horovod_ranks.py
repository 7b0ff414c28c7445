"""Data parallel training by Horovod: a process per rank, gradients added up by Horovod's operations.

The processes find each other through Horovod's key-value store, which knows no authentication: rank 0 serves it on
one address only, where Horovod's launcher would take all interfaces. Horovod on GPUs has not been run.
"""

import importlib.util
import socket
import threading
import time
from typing import Any, Callable, List

import tensorflow as tf

from crosstrain_service.training import Execution

from . import surroundings
from .shares import Share

#: Longest time that the others may take to start, seconds.
TIMEOUT = 300.0


def obstacle() -> str:
    """Why Horovod cannot be used here, or an empty text."""
    if importlib.util.find_spec("horovod") is None:
        return "Horovod is not built in this environment"
    try:
        import horovod.tensorflow as hvd
    except Exception as error:  # whatever a library built for another TensorFlow may raise
        return "Horovod cannot be imported: %s" % type(error).__name__
    return "" if hvd.gloo_built() else "Horovod is built without Gloo"


class HorovodRanks:
    """This process's one copy of the network, number ``first`` of ``count``; like ``Replicas`` to an engine."""

    local = 1

    def __init__(self, execution: Execution) -> None:
        import horovod.tensorflow as hvd

        # The processes stay together for the engines that follow: what they left in the store would lead them astray
        # if they met anew.
        if not hvd.is_initialized():
            address, port = surroundings.rendezvous(execution)
            if execution.ranks.rank == 0:
                _serve(address, port)
            _await(address, port)
            hvd.init()
        self._hvd = hvd
        self.count = hvd.size()
        self.first = hvd.rank()
        self._calls = 0
        self._device = "/GPU:0" if execution.device == "cuda" else "/CPU:0"

    def scope(self) -> Any:
        """Where variables are made."""
        return tf.device(self._device)

    def run(self, function: Callable[[Share], Any], share: Share) -> List[Any]:
        """The result of ``function`` for this process's share, as a list of one."""
        with tf.device(self._device):
            return [function(share._replace(add=self.add))]

    def add(self, values: List[tf.Tensor]) -> List[tf.Tensor]:
        """Sums over all ranks; Horovod differentiates them as sums."""
        # Every process makes the same calls in the same order, so that equal names meet.
        self._calls += 1
        return [self._hvd.allreduce(value, op=self._hvd.Sum, name="crosstrain.%d.%d" % (self._calls, index))
                for index, value in enumerate(values)]

    def feed(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """``dataset`` for ``fit``, which holds this process's shares."""
        return dataset

    def local_values(self, variable: tf.Variable) -> List[tf.Variable]:
        """The variable of each copy in this process."""
        return [variable]

    def close(self) -> None:
        """Nothing: Horovod ends with the process."""


def _serve(address: str, port: int) -> None:
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class Handler(RendezvousHandler):
        def do_DELETE(self) -> None:  # noqa: N802
            # Everything stays until the process ends: a slow process may still want what a fast one is done with.
            self.send_status_code(200)

    class Server(RendezvousHTTPServer):
        daemon_threads = True
        address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]

        def server_bind(self) -> None:
            # Without the name look-up of ``HTTPServer``.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = address, port

    server = Server((address, port), Handler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _await(address: str, port: int) -> None:
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            socket.create_connection((address, port), 5).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
