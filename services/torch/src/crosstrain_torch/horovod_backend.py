"""Data parallel ranks by Horovod: gradients averaged by its background thread while the backward pass goes on.

Every gradient is handed over as soon as it is complete, as Horovod's own ``DistributedOptimizer`` does; what is
minimised, and the weight of uneven shares, is as :mod:`.steps` says. The processes find each other through Horovod's
key-value store, which rank 0 serves on one address only: the loopback interface's for ranks of one host, else its own
in the group. Horovod's launcher would serve it on all interfaces, without any authentication.

Horovod with NCCL, for device "cuda", has not been run.
"""

import importlib.util
import socket
import threading
import time
from typing import Any, List

import torch
from torch import nn

from crosstrain_service.training import Execution

from .communication import TIMEOUT, Group, Traffic, World
from .model import Network
from .precision import Precision
from .steps import Clock, Steps


def obstacle(device: str = "cpu") -> str:
    """Why Horovod cannot be used here, or an empty text."""
    if importlib.util.find_spec("horovod") is None:
        return "Horovod is not built in this environment"
    try:
        import horovod.torch as hvd
    except Exception as error:  # whatever the import of a library for another PyTorch may raise
        return "Horovod cannot be imported: %s" % type(error).__name__
    if not hvd.gloo_built():
        return "Horovod is built without Gloo"
    return "" if device == "cpu" or hvd.nccl_built() else "Horovod is built without NCCL"


class HorovodGroup(Group):
    """All processes, within Horovod."""

    def __init__(self, traffic: Traffic) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        self.size = hvd.size()
        self.index = hvd.rank()
        self._traffic = traffic
        self._count = 0

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=self._name())
        self._traffic.add(tensor, start)
        return tensor

    def _name(self) -> str:
        # All processes call in the same order.
        self._count += 1
        return "sum.%d" % self._count


class HorovodWorld(World):
    """The processes as Horovod sees them."""

    def __init__(self, execution: Execution) -> None:
        import horovod.torch as hvd

        ranks = execution.ranks
        super().__init__(ranks.size)
        # The processes stay together for the engines that follow: what they left in the store would lead them astray
        # if they met anew.
        if not hvd.is_initialized():
            address = "127.0.0.1" if ranks.members == 1 else ranks.hosts[0]
            if ranks.rank == 0:
                serve(address, ranks.ports[0])
            else:
                # Horovod itself gives up after a few tries.
                _await(address, ranks.ports[0])
            hvd.init()
        self.data = HorovodGroup(self.traffic)


class HorovodSteps(Steps):
    """Gradients averaged over all processes by Horovod."""

    def __init__(self, network: Network, precision: Precision, execution: Execution, world: World) -> None:
        super().__init__(network, precision, execution.accumulation_steps)
        import horovod.torch as hvd

        self._hvd = hvd
        self.averaged = world.data.size
        self._traffic = world.traffic
        self._reduces = True
        self._handles: List[Any] = []
        self._clock = Clock()
        self._bytes = sum(value.numel() * value.element_size() for value in network.trained.values())
        for name, value in network.trained.items():
            value.register_post_accumulate_grad_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def ready(parameter: nn.Parameter) -> None:
            if self._reduces:
                # The last call begins the time of waiting.
                self._clock.start(parameter)
                self._handles.append(self._hvd.allreduce_async_(parameter.grad, name=name, op=self._hvd.Average))

        return ready

    def _differentiate(self, loss: torch.Tensor, weight: float) -> None:
        super()._differentiate(loss, weight)
        if not self._reduces:
            return
        for handle in self._handles:
            self._hvd.synchronize(handle)
        self._handles.clear()
        self._traffic.seconds += self._clock.seconds()
        self._traffic.bytes += self._bytes

    def _unreduced(self) -> Any:
        return _Switch(self)


class _Switch:
    """Leaves the gradients of a backward pass to the next one."""

    def __init__(self, steps: HorovodSteps) -> None:
        self._steps = steps

    def __enter__(self) -> None:
        self._steps._reduces = False

    def __exit__(self, *_: Any) -> None:
        self._steps._reduces = True


def _await(address: str, port: int) -> None:
    end = time.monotonic() + TIMEOUT.total_seconds()
    while True:
        try:
            socket.create_connection((address, port), 5).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def serve(address: str, port: int) -> Any:
    """Horovod's key-value store, served at this address alone until the process ends."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class Handler(RendezvousHandler):
        def do_DELETE(self) -> None:  # noqa: N802
            # A slow process may still want what a fast one is done with.
            self.send_status_code(200)

    class Server(RendezvousHTTPServer):
        daemon_threads = True
        address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        request_queue_size = 128

        def server_bind(self) -> None:
            # Without the name look-up of ``HTTPServer``.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = address, port

    server = Server((address, port), Handler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
