"""The PyTorch engine of Crosstrain.

This module does not import PyTorch: the front process reads the names below, and the child sets
the environment variables before it imports the engine.
"""

import os
from typing import Dict

from crosstrain_service.training import Execution

from .refusals import refusal
from .surroundings import of_ranks

__all__ = ["ENGINES", "environment", "refusal"]

#: Engines of this package, "module:Class" by name.
ENGINES = {"torch": "crosstrain_torch.engine:TorchEngine"}


def environment(engine: str, execution: Execution, run_dir: str) -> Dict[str, str]:
    """Variables that must be set before PyTorch is imported.

    A run with ``torch.compile`` keeps the compiler's cache inside ``run_dir``, so that every run pays for
    its own compilation and none loads code that another one left behind; kernels are compiled in the child
    itself, which leaves no worker processes when the run is cancelled.
    """
    if engine not in ENGINES:
        raise KeyError(engine)
    threads = str(execution.intra_threads)
    variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if execution.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    else:
        # NVML counts devices in this order, and so does ``device_index``.
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if execution.deterministic:
            variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        if not execution.allow_tf32:
            variables["NVIDIA_TF32_OVERRIDE"] = "0"
    if execution.compiler == "torch.compile":
        variables["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(run_dir, "inductor")
        variables["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if execution.ranks.size > 1:
        variables.update(of_ranks(execution))
    return variables
