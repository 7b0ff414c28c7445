"""Which processes a run takes, and the place of each."""

import dataclasses
import importlib
import json
import os
import secrets
import socket
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from crosstrain_protos.v1 import run_pb2, training_pb2

from ..rundir import StoredRequest, write_file
from ..training import Execution, Parallel, Ranks

#: File in the folder that the processes of a host share.
PLAN = "plan.json"
LOOPBACK = "127.0.0.1"


class Plan(NamedTuple):
    """All processes of a run in order of ranks, the settings they were planned for, and their secret."""

    ranks: List[Ranks]
    parallel: Parallel
    secret: bytes

    def local(self, member: int) -> List[Ranks]:
        """The processes of one member."""
        return [item for item in self.ranks if item.member == member]

    def at(self, folder: str, rendezvous: Tuple[str, int]) -> "Plan":
        """The plan for the processes of one host, with the folder that they share and where they meet the others."""
        ranks = [dataclasses.replace(item, folder=folder, rendezvous=rendezvous) for item in self.ranks]
        return self._replace(ranks=ranks)


def processes_of(package: str, engine: str, execution: Execution, ranks: int) -> int:
    """Processes that ``ranks`` ranks of one host take."""
    count: Optional[Callable[[str, Execution, int], int]] = getattr(
        importlib.import_module(package), "processes", None)
    return count(engine, execution, ranks) if count is not None else ranks


def group_of(stored: StoredRequest) -> Optional[training_pb2.Group]:
    """The group that a run is part of; None if its service works alone."""
    request = stored.request
    if stored.kind == run_pb2.RUN_KIND_EVALUATE or len(request.group.ranks) < 2:
        return None
    return request.group  # type: ignore[no-any-return]


def follows(stored: StoredRequest) -> bool:
    """Whether a run is led by that of another service."""
    group = group_of(stored)
    return group is not None and group.member > 0


def needs_launcher(package: str, stored: StoredRequest, execution: Execution) -> bool:
    """Whether a run takes several processes; an evaluation never does."""
    if stored.kind == run_pb2.RUN_KIND_EVALUATE:
        return False
    ranks = execution.parallel.ranks
    return group_of(stored) is not None or (
        ranks > 1 and processes_of(package, stored.request.engine, execution, ranks) > 1)


def devices_of(package: str, stored: StoredRequest, execution: Execution) -> List[str]:
    """Names of the devices that a run uses here: one GPU for each rank of this service, or the CPU."""
    count = 1
    if execution.device == "cuda" and stored.kind != run_pb2.RUN_KIND_EVALUATE:
        group = group_of(stored)
        count = execution.parallel.ranks if group is None else group.ranks[group.member]
    return ["%s:%d" % (execution.device, execution.device_index + index) for index in range(count)]


def local_plan(processes: int, parallel: Parallel) -> Plan:
    """The plan of a run on one host."""
    return group_plan([processes], [LOOPBACK], [free_ports(processes, LOOPBACK)], parallel, secrets.token_bytes(32))


def group_plan(processes: Sequence[int], hosts: Sequence[str], ports: Sequence[Sequence[int]], parallel: Parallel,
               secret: bytes) -> Plan:
    """The plan of a run over members with so many processes each, at these addresses with these free ports."""
    size = sum(processes)
    every_host = tuple(host for host, count in zip(hosts, processes) for _ in range(count))
    every_port = tuple(port for found in ports for port in found)
    ranks = []
    for member, count in enumerate(processes):
        for local in range(count):
            ranks.append(Ranks(rank=len(ranks), size=size, local_rank=local, local_size=count, member=member,
                               members=len(processes), hosts=every_host, ports=every_port))
    return Plan(ranks, parallel, secret)


def of_process(execution: Execution, ranks: Ranks, threads_given: bool) -> Execution:
    """The execution of one process: its place, its GPU, its part of the cores unless threads were asked for."""
    if ranks.size == 1:
        return execution
    threads = execution.intra_threads
    if not threads_given:
        threads = max(1, threads // ranks.local_size)
    index = execution.device_index + (ranks.local_rank if execution.device == "cuda" else 0)
    return dataclasses.replace(execution, ranks=ranks, intra_threads=threads, device_index=index)


def shrunk(parallel: Parallel, lost: int) -> Optional[Parallel]:
    """The settings without ``lost`` ranks; None if fewer data ranks would be left than the job allows.

    Only whole data shares can be left out, since the ranks of one share hold different parts of the network.
    """
    width = parallel.tensor * parallel.pipeline
    data = parallel.data - -(-lost // width)
    return dataclasses.replace(parallel, data=data) if data >= max(1, parallel.min_data) else None


def free_ports(count: int, host: str) -> List[int]:
    """Ports of an address that are free now. Nothing keeps them until they are used: use them at once."""
    opened = []
    try:
        for _ in range(count):
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            probe = socket.socket(family)
            opened.append(probe)
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in opened]
    finally:
        for probe in opened:
            probe.close()


def write_plan(plan: Plan, folder: str) -> None:
    """Writes the plan for the processes of this host; the folder is private."""
    ranks = [dataclasses.asdict(item) for item in plan.ranks]
    value: Dict[str, Any] = {
        "ranks": ranks, "parallel": dataclasses.asdict(plan.parallel), "secret": plan.secret.hex()}
    write_file(os.path.join(folder, PLAN), json.dumps(value).encode("utf-8"))


def read_plan(folder: str) -> Plan:
    """The plan that the launcher wrote."""
    with open(os.path.join(folder, PLAN), "rb") as file:
        value = json.loads(file.read().decode("utf-8"))
    ranks = [ranks_from_json(item) for item in value["ranks"]]
    return Plan(ranks, Parallel(**value["parallel"]), bytes.fromhex(value["secret"]))


def ranks_from_json(value: Dict[str, Any]) -> Ranks:
    """A process's place from what ``dataclasses.asdict`` and JSON made of it."""
    tuples = {name: tuple(value[name]) for name in ("hosts", "ports", "rendezvous")}
    return Ranks(**dict(value, **tuples))
