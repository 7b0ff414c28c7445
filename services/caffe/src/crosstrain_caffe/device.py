"""Device, threads and versions of the process, and the folder for Caffe's files.

The GPU paths follow Caffe's sources and have not been run on a GPU.
"""

import ctypes
import os
import tempfile
from typing import Any, Dict

import caffe
import google.protobuf
import numpy as np

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.gpu import gpus
from crosstrain_service.training import Execution

from . import WORK_FOLDER


def configure(execution: Execution) -> None:
    """Chooses CPU or GPU for this thread. Raises ``ENVIRONMENT`` if the GPU cannot be used."""
    if execution.device == "cpu":
        caffe.set_mode_cpu()
        return
    obstacle = cuda_obstacle()
    if obstacle:
        raise CrosstrainError("ENVIRONMENT", obstacle, "execution.device")
    # A device that is not there would end the process.
    if execution.device_index >= len(gpus()):
        message = "there is no CUDA device %d: NVML sees %d" % (execution.device_index, len(gpus()))
        raise CrosstrainError("ENVIRONMENT", message, "execution.device")
    caffe.set_device(execution.device_index)
    caffe.set_mode_gpu()


def cuda_obstacle() -> str:
    """Why CUDA cannot be used on this machine, or an empty text."""
    if not hasattr(caffe._caffe.Blob, "_gpu_data_ptr"):
        return "this build of Caffe has no GPU code"
    return "" if gpus() else "this machine has no NVIDIA GPU with a driver"


def work_folder() -> tempfile.TemporaryDirectory:
    """A new folder for one engine's prototxt files and snapshots, inside the run's folder if there is one."""
    parent = os.environ.get(WORK_FOLDER) or None
    if parent is not None:
        os.makedirs(parent, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="engine-", dir=parent)


def libraries() -> Dict[str, str]:
    """Versions of Caffe and of the libraries it computes with."""
    return {
        "caffe": caffe.__version__,
        "numpy": np.__version__,
        "protobuf": google.protobuf.__version__,
        "openblas": _openblas("openblas_get_config", ctypes.c_char_p, b"").decode("ascii", "replace"),
    }


def facts(execution: Execution) -> Dict[str, str]:
    """The maths in use, read back where it can be asked."""
    return {
        "precision": "float32",
        "intra_threads": str(_openblas("openblas_get_num_threads", ctypes.c_int, 0)),
        "blas": "OpenBLAS",
        "blas_kernels": _openblas("openblas_get_corename", ctypes.c_char_p, b"").decode("ascii", "replace"),
        "deterministic": "true",
        "device": execution.device,
    }


def _openblas(function: str, kind: Any, default: Any) -> Any:
    """What a function without arguments of the BLAS that Caffe is linked with gives."""
    try:
        found = getattr(ctypes.CDLL("libopenblas.so.0"), function)
    except (OSError, AttributeError):
        return default
    found.restype = kind
    found.argtypes = []
    return found()
