"""Environment variables of a process among several. Imports no framework."""

import json
from typing import Dict

from crosstrain_service.parallel import horovod_settings
from crosstrain_service.training import Execution


def of_ranks(execution: Execution) -> Dict[str, str]:
    """Who the others are: ``TF_CONFIG``, or what Horovod's own launcher would set."""
    if execution.parallel.backend == "horovod":
        return horovod_settings.variables(execution)
    ranks = execution.ranks
    workers = ["%s:%d" % pair for pair in zip(ranks.hosts, ranks.ports)]
    return {"TF_CONFIG": json.dumps({
        "cluster": {"worker": workers}, "task": {"type": "worker", "index": ranks.rank}})}
