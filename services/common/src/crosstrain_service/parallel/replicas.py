"""Whether all ranks of data parallel training hold the same parameters.

Each rank updates a replica of its own. Replicas that begin alike and are given the same sums of gradients stay bitwise
equal; one that missed a sum, or that has other settings, drifts away, and nothing in process 0's own values shows it.
"""

import hashlib
import json
from typing import Dict, Mapping

import numpy as np

from ..errors import CrosstrainError
from .team import Team


def compare(team: Team, parameters: Mapping[str, np.ndarray], moment: str) -> None:
    """Compares the parameters of all processes at one moment ("before step 3"); all of them call it.

    Only where every process has a whole replica; one that cannot tell its parameters gives none. Raises
    ``RANK_DIVERGED`` in process 0, naming the first rank and parameter that differ.
    """
    if team.size == 1 or team.shares != team.size:
        return
    own = {name: _digest(value) for name, value in parameters.items()}
    answers = team.gather(json.dumps(own).encode("utf-8"))
    for rank, answer in enumerate(answers):
        theirs: Dict[str, str] = json.loads(answer.decode("utf-8"))
        other = [name for name in own if theirs.get(name, own[name]) != own[name]]
        if other:
            raise CrosstrainError("RANK_DIVERGED", "%s, rank %d holds other values of %s%s than rank 0" % (
                moment, rank, other[0], " and %d more" % (len(other) - 1) if len(other) > 1 else ""))


def _digest(value: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).hexdigest()
