"""Environment variables of a process among several. Imports no framework."""

import json
import socket
from typing import Dict, Tuple

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.training import Execution


def of_ranks(execution: Execution) -> Dict[str, str]:
    """Who the others are: ``TF_CONFIG``, or what Horovod's own launcher would set."""
    if execution.parallel.backend == "horovod":
        return _of_horovod(execution)
    ranks = execution.ranks
    workers = ["%s:%d" % pair for pair in zip(ranks.hosts, ranks.ports)]
    return {"TF_CONFIG": json.dumps({
        "cluster": {"worker": workers}, "task": {"type": "worker", "index": ranks.rank}})}


def rendezvous(execution: Execution) -> Tuple[str, int]:
    """Address and port of Horovod's key-value store: the loopback interface's for ranks of one host."""
    ranks = execution.ranks
    return ("127.0.0.1" if ranks.members == 1 else ranks.hosts[0]), ranks.ports[0]


def interface(address: str) -> str:
    """Name of this machine's network interface with an address. Raises ``ENVIRONMENT`` if there is none."""
    import psutil

    wanted = {found[4][0] for found in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] in wanted for entry in addresses):
            return name
    raise CrosstrainError("ENVIRONMENT", "no network interface here has the address %s" % address,
                          "execution.parallel")


def _of_horovod(execution: Execution) -> Dict[str, str]:
    ranks = execution.ranks
    address, port = rendezvous(execution)
    local_rank, local_size, cross_rank, cross_size = _place(ranks.hosts, ranks.rank)
    numbers = {
        "RANK": ranks.rank, "SIZE": ranks.size,
        "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size,
        "CROSS_RANK": cross_rank, "CROSS_SIZE": cross_size,
        "GLOO_RENDEZVOUS_PORT": port,
    }
    size = execution.parallel.bucket_mib << 20
    if size or (execution.deterministic and ranks.size > 2):
        # With more than two ranks the order of addition depends on which tensors happen to travel together.
        numbers["FUSION_THRESHOLD"] = size
    variables = {"HOROVOD_" + name: str(value) for name, value in numbers.items()}
    variables.update(
        HOROVOD_HOSTNAME=ranks.hosts[ranks.rank], HOROVOD_GLOO_RENDEZVOUS_ADDR=address,
        HOROVOD_GLOO_IFACE="lo" if ranks.members == 1 else interface(ranks.hosts[ranks.rank]),
        HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
    return variables


def _place(hosts: Tuple[str, ...], rank: int) -> Tuple[int, int, int, int]:
    """Local rank and size, cross rank and size; processes with one address share a host."""
    counts: Dict[str, int] = {}
    for host in hosts:
        counts[host] = counts.get(host, 0) + 1
    local = sum(host == hosts[rank] for host in hosts[:rank])
    across = [host for host, count in counts.items() if count > local]
    return local, counts[hosts[rank]], across.index(hosts[rank]), len(across)
