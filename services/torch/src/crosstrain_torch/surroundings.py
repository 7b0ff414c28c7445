"""Environment variables of a rank. Imports no framework."""

import socket
from typing import Dict, Tuple

import psutil

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.training import Execution


def of_ranks(execution: Execution) -> Dict[str, str]:
    """By which interface a rank talks to the others, and Horovod's place of it.

    Ranks of one host talk over the loopback interface; else it is the one that has this rank's address.
    """
    ranks = execution.ranks
    name = "lo" if ranks.members == 1 else interface(ranks.hosts[ranks.rank])
    # NCCL takes a name as the beginning of one unless told otherwise.
    variables = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "=" + name}
    if execution.parallel.backend == "horovod":
        variables.update(_of_horovod(execution, name))
    return variables


def interface(address: str) -> str:
    """Name of this machine's network interface with an address. Raises ``ENVIRONMENT`` if there is none."""
    wanted = {found[4][0] for found in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] in wanted for entry in addresses):
            return name
    raise CrosstrainError("ENVIRONMENT", "no network interface here has the address %s" % address,
                          "execution.parallel")


def _of_horovod(execution: Execution, name: str) -> Dict[str, str]:
    """The variables that Horovod's own launcher sets for a process."""
    ranks = execution.ranks
    local_rank, local_size, cross_rank, cross_size = place(ranks.hosts, ranks.rank)
    numbers = {
        "RANK": ranks.rank, "SIZE": ranks.size,
        "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size,
        "CROSS_RANK": cross_rank, "CROSS_SIZE": cross_size,
        "GLOO_RENDEZVOUS_PORT": ranks.ports[0],
    }
    size = execution.parallel.bucket_mib << 20
    if size or (execution.deterministic and ranks.size > 2):
        # Tensors that happen to be ready together are reduced together, and with more than two ranks their order
        # of addition depends on their place in the buffer: only without that is a run repeated bit for bit.
        numbers["FUSION_THRESHOLD"] = size
    variables = {"HOROVOD_" + key: str(value) for key, value in numbers.items()}
    variables.update({
        "HOROVOD_HOSTNAME": ranks.hosts[ranks.rank],
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1" if ranks.members == 1 else ranks.hosts[0],
        "HOROVOD_GLOO_IFACE": name,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    })
    return variables


def place(hosts: Tuple[str, ...], rank: int) -> Tuple[int, int, int, int]:
    """Local rank and size, cross rank and size as Horovod counts them; processes with one address share a host."""
    counts: Dict[str, int] = {}
    for host in hosts:
        counts[host] = counts.get(host, 0) + 1
    local = sum(host == hosts[rank] for host in hosts[:rank])
    across = [host for host, count in counts.items() if count > local]
    return local, counts[hosts[rank]], across.index(hosts[rank]), len(across)
