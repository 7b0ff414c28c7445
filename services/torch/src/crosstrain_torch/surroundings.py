"""Environment variables of a rank. Imports no framework."""

import socket
from typing import Dict

import psutil

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.training import Execution, Ranks


def of_ranks(execution: Execution) -> Dict[str, str]:
    """By which interface a rank talks to the others, and Horovod's place of it.

    Ranks of one host talk over the loopback interface; else it is the one that has this rank's address.
    """
    ranks = execution.ranks
    name = "lo" if ranks.members == 1 else interface(ranks.hosts[ranks.rank])
    # NCCL takes a name as the beginning of one unless told otherwise.
    variables = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "=" + name}
    if execution.parallel.backend == "horovod":
        variables.update(_of_horovod(ranks, name))
    return variables


def interface(address: str) -> str:
    """Name of this machine's network interface with an address. Raises ``ENVIRONMENT`` if there is none."""
    wanted = {found[4][0] for found in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] in wanted for entry in addresses):
            return name
    raise CrosstrainError("ENVIRONMENT", "no network interface here has the address %s" % address,
                          "execution.parallel")


def _of_horovod(ranks: Ranks, name: str) -> Dict[str, str]:
    """The variables that Horovod's own launcher sets for a process."""
    address = "127.0.0.1" if ranks.members == 1 else ranks.hosts[0]
    numbers = {
        "RANK": ranks.rank, "SIZE": ranks.size,
        "LOCAL_RANK": ranks.local_rank, "LOCAL_SIZE": ranks.local_size,
        "CROSS_RANK": ranks.member, "CROSS_SIZE": ranks.members,
        "GLOO_RENDEZVOUS_PORT": ranks.ports[0],
    }
    variables = {"HOROVOD_" + key: str(value) for key, value in numbers.items()}
    variables.update({
        "HOROVOD_HOSTNAME": "member-%d" % ranks.member,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_IFACE": name,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "60",
    })
    return variables
