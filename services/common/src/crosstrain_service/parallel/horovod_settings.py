"""How the processes of a run find each other through Horovod, for every framework that it serves.

Horovod's own launcher serves its key-value store on all network interfaces without any authentication
(CVE-2024-10190); here rank 0 serves it on the loopback interface only, and ranks of other hosts reach it through
the launchers (:mod:`.relay`).
"""

import http.client
import socket
import threading
import time
from typing import Any, Dict, Tuple

import psutil

from ..errors import CrosstrainError
from ..training import Execution

#: Longest time that the others may take to start, seconds.
START_SECONDS = 600.0


def interface_of(execution: Execution) -> str:
    """The network interface by which a rank talks to the others."""
    ranks = execution.ranks
    return "lo" if ranks.members == 1 else interface(ranks.hosts[ranks.rank])


def interface(address: str) -> str:
    """Name of this machine's network interface with an address. Raises ``ENVIRONMENT`` if there is none."""
    wanted = {found[4][0] for found in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] in wanted for entry in addresses):
            return name
    raise CrosstrainError("ENVIRONMENT", "no network interface here has the address %s" % address,
                          "execution.parallel")


def variables(execution: Execution) -> Dict[str, str]:
    """The environment variables that Horovod's own launcher sets for a process."""
    ranks = execution.ranks
    address, port = ranks.rendezvous
    local_rank, local_size, cross_rank, cross_size = place(ranks.hosts, ranks.rank)
    numbers = {
        "RANK": ranks.rank, "SIZE": ranks.size,
        "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size,
        "CROSS_RANK": cross_rank, "CROSS_SIZE": cross_size,
        "GLOO_RENDEZVOUS_PORT": port,
    }
    size = execution.parallel.bucket_mib << 20
    if size or (execution.deterministic and ranks.size > 2):
        # Tensors that happen to be ready together are reduced together, and with more than two ranks their order
        # of addition depends on their place in the buffer: only without that is a run repeated bit for bit.
        numbers["FUSION_THRESHOLD"] = size
    found = {"HOROVOD_" + key: str(value) for key, value in numbers.items()}
    found.update(
        HOROVOD_HOSTNAME=ranks.hosts[ranks.rank], HOROVOD_GLOO_RENDEZVOUS_ADDR=address,
        HOROVOD_GLOO_IFACE=interface_of(execution), HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
    return found


def place(hosts: Tuple[str, ...], rank: int) -> Tuple[int, int, int, int]:
    """Local rank and size, cross rank and size as Horovod counts them; processes with one address share a host."""
    counts: Dict[str, int] = {}
    for host in hosts:
        counts[host] = counts.get(host, 0) + 1
    local = sum(host == hosts[rank] for host in hosts[:rank])
    across = [host for host, count in counts.items() if count > local]
    return local, counts[hosts[rank]], across.index(hosts[rank]), len(across)


def begin(execution: Execution, hvd: Any) -> None:
    """Starts Horovod (its module for a framework) unless it runs already.

    The processes stay together for the engines that follow: what they left in the store would lead them astray if
    they met anew.
    """
    if hvd.is_initialized():
        return
    address, port = execution.ranks.rendezvous
    if execution.ranks.rank == 0:
        serve(address, port)
    else:
        # Horovod itself gives up after a few tries.
        await_store(address, port)
    hvd.init()


def serve(address: str, port: int) -> Any:
    """Horovod's key-value store, served at this address alone until the process ends."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class Handler(RendezvousHandler):  # type: ignore[misc]
        def do_DELETE(self) -> None:  # noqa: N802
            # A slow process may still want what a fast one is done with.
            self.send_status_code(200)

    class Server(RendezvousHTTPServer):  # type: ignore[misc]
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


def await_store(address: str, port: int) -> None:
    """Returns once the store answers; on another host a relay takes the connection before anybody listens."""
    end = time.monotonic() + START_SECONDS
    while True:
        connection = http.client.HTTPConnection(address, port, timeout=START_SECONDS)
        try:
            connection.request("GET", "/crosstrain/ready")
            connection.getresponse().read()
            return
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > end:
                raise OSError("Horovod's rendezvous does not answer: %s" % error) from error
            time.sleep(0.02)
        finally:
            connection.close()
