"""The state of a solver as Caffe's own snapshot: a ``.caffemodel`` and a ``.solverstate``."""

import glob
import os
from typing import Any, Mapping

import numpy as np
from caffe.proto import caffe_pb2

from crosstrain_service.engine import Arrays

#: The two files by the name of their bytes in a checkpoint.
_FILES = {"solver": ".solverstate", "network": ".caffemodel"}


def save(solver: Any, folder: str) -> Arrays:
    """The bytes (uint8) of a snapshot, whose files are made in ``folder`` (the solver's prefix) and removed."""
    solver.snapshot()
    found = {}
    for name, suffix in _FILES.items():
        (path,) = glob.glob(os.path.join(glob.escape(folder), "snapshot_iter_*" + suffix))
        found[name] = np.fromfile(path, np.uint8)
        os.unlink(path)
    return found


def restore(solver: Any, folder: str, state: Mapping[str, np.ndarray]) -> None:
    """Restores what :func:`save` gave, into a solver of the same network and rule."""
    paths = {name: os.path.join(folder, "restored" + suffix) for name, suffix in _FILES.items()}
    message = caffe_pb2.SolverState()
    message.ParseFromString(state["solver"].tobytes())
    # It names the network's file where the snapshot was made.
    message.learned_net = paths["network"]
    for name, data in (("solver", message.SerializeToString()), ("network", state["network"].tobytes())):
        with open(paths[name], "wb") as file:
            file.write(data)
    solver.restore(paths["solver"])
    for path in paths.values():
        os.unlink(path)
