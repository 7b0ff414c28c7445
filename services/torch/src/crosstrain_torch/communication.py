"""The processes that train together: this one's place among them and the collective operations they share.

A rank belongs to three groups: ranks with the same part of the network and other rows (``data``), ranks that
share the tensors of the same layers and rows (``tensor``), and ranks that hold the layers before and after
(``pipeline``). Processes of one host meet through a file in their private folder and talk over the loopback
interface; those of several hosts meet at a store on rank 0's loopback interface, which a relay of the common layer
leads to.

NCCL, for device "cuda", has not been run.
"""

import datetime
import os
import socket
import time
from contextlib import contextmanager
from typing import Any, Iterator, List, Mapping, Optional

import numpy as np
import torch
import torch.distributed as dist

from crosstrain_service import weights
from crosstrain_service.engine import Arrays
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.parallel import progress
from crosstrain_service.training import Execution

#: How long a rank waits to meet the others.
TIMEOUT = datetime.timedelta(minutes=10)
#: How long an operation waits for the others before it fails, which would be the error of a rank that is not to blame.
#: Whoever started the ranks notices what is lost within seconds, and what hangs in the time that the job gives.
PATIENCE = datetime.timedelta(days=1)

#: Groups ever joined. A group's end waits for its threads, which may be waiting for the interpreter's lock to free a
#: tensor; were it ended by Python's garbage collection, which holds that lock, the process would hang.
_JOINED: List[Any] = []

#: The store at which the processes meet, kept for the engines that follow in the same process: each has names of its
#: own in it, since what an ended group left there would lead the next one astray.
_MEETING: List[Any] = []


class Traffic:
    """What training steps hand to collective operations, and how long they wait in them."""

    def __init__(self) -> None:
        self.bytes = 0
        self.seconds = 0.0

    def add(self, tensor: torch.Tensor, start: float) -> None:
        """Counts an operation on ``tensor`` that began at ``start`` of ``time.perf_counter``."""
        self.seconds += time.perf_counter() - start
        self.bytes += tensor.numel() * tensor.element_size()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Counts nothing within: what is no training step."""
        before = self.bytes, self.seconds
        try:
            yield
        finally:
            self.bytes, self.seconds = before

    def take_seconds(self) -> float:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Group:
    """A group of processes, here of this one alone."""

    size = 1
    index = 0
    #: PyTorch's process group, if there is one.
    handle: Any = None

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all members' tensors, in place."""
        return tensor

    def gather(self, tensor: torch.Tensor) -> List[torch.Tensor]:
        """The tensors, all of the same shape, of all members in order."""
        return [tensor]

    def gather_arrays(self, arrays: Mapping[str, np.ndarray]) -> List[Arrays]:
        """The named arrays of all members in order."""
        return [dict(arrays)]


class ProcessGroup(Group):
    """A group within ``torch.distributed``."""

    def __init__(self, handle: Any, traffic: Traffic) -> None:
        self.handle = handle
        _JOINED.append(handle)
        self.size = dist.get_world_size(handle)
        self.index = dist.get_rank(handle)
        self._traffic = traffic

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        progress.joins()
        start = time.perf_counter()
        dist.all_reduce(tensor, group=self.handle)
        self._traffic.add(tensor, start)
        return tensor

    def gather(self, tensor: torch.Tensor) -> List[torch.Tensor]:
        progress.joins()
        start = time.perf_counter()
        tensor = tensor.contiguous()
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor, group=self.handle)
        self._traffic.add(tensor, start)
        return found

    def gather_arrays(self, arrays: Mapping[str, np.ndarray]) -> List[Arrays]:
        progress.joins()
        # On the CPU, which every group can send from.
        own = torch.frombuffer(bytearray(weights.to_bytes(arrays)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([own.numel()]), group=self.handle)
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[:own.numel()] = own
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded, group=self.handle)
        return [weights.from_bytes(data[:int(size)].numpy().tobytes())[0] for data, size in zip(found, sizes)]


class World:
    """All groups of this process; by itself without collective operations."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.traffic = Traffic()
        self.data: Group = Group()
        self.tensor: Group = Group()
        self.pipeline: Group = Group()

    def close(self) -> None:
        """Leaves the groups."""


class NativeWorld(World):
    """The groups in ``torch.distributed``: Gloo, and NCCL between GPUs."""

    def __init__(self, execution: Execution, device: torch.device) -> None:
        super().__init__(execution.ranks.size)
        parallel, ranks = execution.parallel, execution.ranks
        # Counts, checkpoints and the like travel between CPUs in either case.
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=_store(execution), rank=ranks.rank, world_size=ranks.size,
                                timeout=PATIENCE)
        _JOINED.append(dist.group.WORLD)
        if parallel.data == ranks.size:
            self.data = ProcessGroup(dist.group.WORLD, self.traffic)
            return
        sizes = (("data", parallel.data), ("pipeline", parallel.pipeline), ("tensor", parallel.tensor))
        mesh = dist.init_device_mesh(device.type, tuple(size for _, size in sizes),
                                     mesh_dim_names=tuple(name for name, _ in sizes))
        if device.type == "cuda":
            # The mesh may have chosen one by the number of the rank.
            torch.cuda.set_device(device)
        for name, size in sizes:
            if size > 1:
                setattr(self, name, ProcessGroup(mesh.get_group(name), self.traffic))

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def relay(world: World, x: Optional[torch.Tensor], like: torch.Tensor, source: int) -> torch.Tensor:
    """``x`` of the pipeline's rank ``source``, in all of its ranks; a tensor of the shape and type of ``like``."""
    sent = torch.zeros_like(like) if x is None else x.detach().to(like.dtype, copy=True)
    return world.pipeline.add_up(sent.contiguous())


def connect(execution: Execution, device: torch.device) -> World:
    """Meets the other processes, waiting for them; returns the groups of this one.

    Raises ``ENVIRONMENT`` if they cannot be reached.
    """
    if execution.ranks.size == 1:
        return World()
    try:
        if execution.parallel.backend == "horovod":
            from .horovod_backend import HorovodWorld

            return HorovodWorld(execution)
        return NativeWorld(execution, device)
    except (RuntimeError, OSError) as error:
        message = "rank %d cannot reach the other ranks: %s" % (execution.ranks.rank, str(error).split("\n")[0])
        raise CrosstrainError("ENVIRONMENT", message, "execution.parallel") from error


def _store(execution: Execution) -> Any:
    if not _MEETING:
        _MEETING.append(_open(execution))
    _MEETING.append(dist.PrefixStore("group-%d" % len(_MEETING), _MEETING[0]))
    return _MEETING[-1]


def _open(execution: Execution) -> Any:
    ranks = execution.ranks
    if ranks.members == 1:
        return dist.FileStore(os.path.join(ranks.folder, "torch-store"), ranks.size)
    address, port = ranks.rendezvous
    if ranks.rank:
        return dist.TCPStore(address, port, ranks.size, is_master=False, timeout=TIMEOUT)
    # By itself the store would listen on all interfaces.
    listening = listen(address, port)
    return dist.TCPStore(address, port, ranks.size, is_master=True, timeout=TIMEOUT,
                         master_listen_fd=listening.detach())


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens at this address alone."""
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((address, port))
    listening.listen(1024)
    return listening
