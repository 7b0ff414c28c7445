"""Device, threads and maths mode of the process, and arrays to tensors.

The CUDA paths follow PyTorch's documentation and have not been run on a GPU.
"""

import os
import re
import shutil
import sysconfig
import time
from typing import Dict, Optional, Tuple

import numpy as np
import torch

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.gpu import gpus
from crosstrain_service.training import Execution


def configure(execution: Execution) -> torch.device:
    """Sets threads, determinism and TF32 for the whole process and returns the device.

    Raises ``ENVIRONMENT`` if the device is not there or if the threads between operations were fixed before.
    """
    torch.set_num_threads(execution.intra_threads)
    if execution.inter_threads and execution.inter_threads != torch.get_num_interop_threads():
        try:
            torch.set_num_interop_threads(execution.inter_threads)
        except RuntimeError:
            fixed = torch.get_num_interop_threads()
            message = "threads between operations were fixed at %d by earlier work in this process" % fixed
            raise CrosstrainError("ENVIRONMENT", message, "execution.inter_threads") from None
    _set_determinism(execution)
    torch.backends.cuda.matmul.allow_tf32 = execution.allow_tf32
    torch.backends.cudnn.allow_tf32 = execution.allow_tf32
    if execution.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available() or execution.device_index >= torch.cuda.device_count():
        message = "there is no CUDA device %d: PyTorch sees %d"
        message %= (execution.device_index, torch.cuda.device_count())
        raise CrosstrainError("ENVIRONMENT", message, "execution.device")
    device = torch.device("cuda", execution.device_index)
    torch.cuda.set_device(device)
    torch.cuda.reset_peak_memory_stats(device)
    return device


def _set_determinism(execution: Execution) -> None:
    if execution.compiler:
        # Also turns on the deterministic mode of the compiler, whose modules this imports.
        torch.use_deterministic_algorithms(execution.deterministic)
    else:
        # The same switch without loading the compiler, which would delay the first step.
        torch.set_deterministic_debug_mode("error" if execution.deterministic else "default")
    # Kernels are deterministic without it; filling every new tensor would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = execution.deterministic
    torch.backends.cudnn.benchmark = execution.mode == "speed" and not execution.deterministic


def to_tensor(array: np.ndarray, device: torch.device, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """The array as a tensor; on a CPU it shares the array's memory if that is writable and of this type."""
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array).to(device=device, dtype=dtype)


def timed_copy(
    x: np.ndarray, labels: np.ndarray, device: torch.device, dtype: torch.dtype
) -> Tuple[torch.Tensor, torch.Tensor, float]:
    """Inputs and labels on the device, and the seconds that the copy took (0 on a CPU: nothing is copied)."""
    if device.type == "cpu":
        return to_tensor(x, device, dtype), to_tensor(labels, device), 0.0
    start = time.perf_counter()
    # Copies from pageable memory return when the data is on its way through the driver's own buffers.
    tensors = to_tensor(x, device, dtype), to_tensor(labels, device)
    return tensors + (time.perf_counter() - start,)


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """A copy of the tensor in NumPy's memory."""
    return np.array(tensor.detach().cpu().numpy())


def libraries() -> Dict[str, str]:
    """Versions of PyTorch and of the libraries in its build."""
    found = {"torch": str(torch.__version__), "numpy": np.__version__}
    build = torch.__config__.show()
    for name, pattern in (("mkl", r"Math Kernel Library Version (\S+)"), ("onednn", r"MKL-DNN v(\S+)")):
        match = re.search(pattern, build)
        if match:
            found[name] = match.group(1)
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def facts(execution: Execution, device: torch.device, dtype: torch.dtype) -> Dict[str, str]:
    """The maths in use, read back from PyTorch where it can be asked."""
    found = {
        # Parameters are float32 in mixed precision too.
        "precision": execution.precision if execution.precision.startswith("mixed_") else str(dtype)[len("torch."):],
        "intra_threads": str(torch.get_num_threads()),
        "inter_threads": str(torch.get_num_interop_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": str(torch.backends.mkldnn.is_available()).lower(),
        "compiler": execution.compiler or "none",
        "memory_format": "contiguous",
        "device": device.type,
    }
    if device.type == "cuda":
        found["device_name"] = torch.cuda.get_device_name(device)
        found["tf32_matmul"] = str(torch.backends.cuda.matmul.allow_tf32).lower()
        found["tf32_cudnn"] = str(torch.backends.cudnn.allow_tf32).lower()
        found["cudnn_benchmark"] = str(torch.backends.cudnn.benchmark).lower()
    return found


def cuda_obstacle() -> str:
    """Why CUDA cannot be used on this machine, or an empty text.

    Asks NVML for GPUs, not PyTorch: the process that describes the engine has them hidden.
    """
    if not torch.backends.cuda.is_built():
        return "this build of PyTorch has no CUDA"
    return "" if gpus() else "this machine has no NVIDIA GPU with a driver"


def compiler_obstacle() -> str:
    """Why ``torch.compile`` cannot be used here, or an empty text; it compiles C++ with Python's headers."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        return "torch.compile needs a C++ compiler, and neither g++ nor clang++ is on PATH"
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        return "torch.compile needs the headers of this Python"
    return ""
