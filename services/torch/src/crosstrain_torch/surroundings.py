"""Environment variables of a rank. Imports no framework."""

from typing import Dict

from crosstrain_service.parallel import horovod_settings
from crosstrain_service.training import Execution


def of_ranks(execution: Execution) -> Dict[str, str]:
    """By which interface a rank talks to the others, and Horovod's place of it.

    Ranks of one host talk over the loopback interface; else it is the one that has this rank's address.
    """
    name = horovod_settings.interface_of(execution)
    # NCCL takes a name as the beginning of one unless told otherwise.
    variables = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "=" + name}
    if execution.parallel.backend == "horovod":
        variables.update(horovod_settings.variables(execution))
    return variables
