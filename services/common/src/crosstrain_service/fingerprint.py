"""What a run runs on, as a flat table of facts."""

import os
import platform
import sys
from typing import Dict

import numpy as np

from . import __version__
from .cores import available_cores
from .engine import EngineInfo
from .errors import without_paths
from .gpu import gpus
from .training import Execution

#: Environment switches that change results or speed.
SWITCHES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "KMP_AFFINITY",
    "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS",
    "TF_ENABLE_ONEDNN_OPTS", "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC", "THEANO_FLAGS", "KERAS_BACKEND",
    "PYTHONHASHSEED", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "MALLOC_CONF",
    "GLIBC_TUNABLES", "LD_PRELOAD",
)


def processor() -> str:
    """Name of the processor."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def facts(engine: EngineInfo, execution: Execution) -> Dict[str, str]:
    """Facts by dotted name; values are text."""
    table = {
        "engine.name": engine.name,
        "engine.version": engine.version,
        "service.version": __version__,
        "python.version": platform.python_version(),
        "python.implementation": sys.implementation.name,
        "numpy.version": np.__version__,
        "os.system": "%s %s" % (platform.system(), platform.release()),
        "cpu.model": processor(),
        "cpu.cores": str(len(available_cores())),
        "device.kind": execution.device,
        "device.index": str(execution.device_index),
        "threads.intra": str(execution.intra_threads),
        "threads.inter": str(execution.inter_threads),
        "threads.affinity": ",".join(map(str, execution.cpu_affinity)),
        "maths.semantics": execution.semantics,
        "maths.mode": execution.mode,
        "maths.precision": execution.precision,
        "maths.deterministic": str(execution.deterministic).lower(),
        "maths.tf32": str(execution.allow_tf32).lower(),
        "maths.compiler": execution.compiler,
        "data.prefetch": str(execution.prefetch),
        "gpu.memory_growth": str(execution.gpu_memory_growth).lower(),
    }
    table.update(("library." + name, version) for name, version in engine.libraries.items())
    if execution.device == "cuda":
        for gpu in gpus():
            table["gpu.%d" % gpu.index] = "%s, %d bytes, driver %s" % (gpu.name, gpu.memory_bytes, gpu.driver)
    for name in SWITCHES:
        if name in os.environ:
            table["env." + name] = os.environ[name]
    return clean(table)


def clean(table: Dict[str, str]) -> Dict[str, str]:
    """The facts without absolute paths, which differ between machines without telling about the maths."""
    return {name: without_paths(value) for name, value in table.items()}
