"""The Caffe engine of Crosstrain.

This module does not import Caffe: the front process reads the two names below, and the child sets the
environment variables before it imports the engine.
"""

import os
from typing import Dict

from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.parallel import sums
from crosstrain_service.training import Execution, Training

#: Engines of this package, "module:Class" by name.
ENGINES = {"caffe": "crosstrain_caffe.engine:CaffeEngine"}

#: Variable that names the folder for the run's prototxt files and snapshots.
WORK_FOLDER = "CROSSTRAIN_CAFFE_FOLDER"


def environment(engine: str, execution: Execution, run_dir: str) -> Dict[str, str]:
    """Variables that must be set before Caffe is imported.

    Caffe's log goes to the standard error stream from errors on, so that the message of a failed check is
    found in the log of the run; OpenBLAS fixes its threads when it is loaded.
    """
    if engine not in ENGINES:
        raise KeyError(engine)
    threads = str(execution.intra_threads)
    variables = {
        "OPENBLAS_NUM_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        "GLOG_logtostderr": "1",
        "GLOG_minloglevel": "2",
        WORK_FOLDER: os.path.join(run_dir, "caffe"),
    }
    if execution.parallel.ranks > 1:
        # The ranks are on one host: neither way listens on its network.
        variables.update(sums.environment() if execution.parallel.backend == "mpi" else {"NCCL_SOCKET_IFNAME": "lo"})
    if execution.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    else:
        # NVML counts devices in this order, and so does ``device_index``.
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if not execution.allow_tf32:
            variables["NVIDIA_TF32_OVERRIDE"] = "0"
    return variables


def refusal(engine: str, model: Model, training: Training, execution: Execution) -> str:
    """Why this engine cannot do what the parts of the request, each for itself, allow; empty if it can."""
    if execution.parallel.ranks < 2:
        return ""
    if execution.parallel.backend == "native" and execution.device == "cpu":
        return "engine caffe: backend native is NCCL between GPUs; on a CPU its ranks use backend mpi"
    if not model.layers_of(BatchNorm):
        return ""
    if not execution.native:
        return "engine caffe does not support batch norm over several ranks: Caffe's layer sees its rank's share"
    if not execution.parallel.local_batch_norm:
        return (
            "engine caffe normalises over each rank's share of a batch: set parallel.local_batch_norm, "
            "or train on one rank"
        )
    return ""
