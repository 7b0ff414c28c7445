"""The engines of Crosstrain that compute with Theano: Keras 2.3.1 on its Theano backend, and Lasagne 0.1.

This module imports neither Theano nor Keras nor Lasagne: the front process reads the two names below, and the
child sets the environment variables before it imports an engine.
"""

import importlib.util
import os
import uuid
from typing import Dict

from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.parallel import sums
from crosstrain_service.training import Execution, Training

from .compiledir import VARIABLE

#: Engines of this package, "module:Class" by name.
ENGINES = {
    "keras-theano": "crosstrain_keras_theano.keras_engine:KerasTheanoEngine",
    "lasagne": "crosstrain_keras_theano.lasagne_engine:LasagneEngine",
}

#: Graph optimisation by compiler; both leave the code generation in C on.
_OPTIMIZERS = {"": "fast_run", "theano:fast_run": "fast_run", "theano:fast_compile": "fast_compile"}


def environment(engine: str, execution: Execution, run_dir: str) -> Dict[str, str]:
    """Variables that must be set before Theano is imported.

    Every call names a new compile directory inside ``run_dir``, so that neither another process nor an
    earlier attempt of the same run can hold its lock. Configuration files of the user (``.theanorc``,
    ``keras.json``) are not read.

    Raises ``KeyError`` for an unknown engine and ``ValueError`` if ``run_dir`` holds a comma, which Theano
    takes for the end of a setting.
    """
    if engine not in ENGINES:
        raise KeyError(engine)
    if "," in run_dir:
        raise ValueError("Theano cannot use a folder whose name holds a comma")
    base = os.path.join(run_dir, "theano-" + uuid.uuid4().hex[:12])
    threads = str(execution.intra_threads)
    variables = {
        "THEANO_FLAGS": ",".join("%s=%s" % item for item in _flags(execution, base).items()),
        "THEANORC": os.devnull,
        VARIABLE: base,
        # Theano's key of a compiled DimShuffle holds the hash of a string, which Python changes in every
        # process.
        "PYTHONHASHSEED": "0",
        "KERAS_BACKEND": "theano",
        "KERAS_HOME": os.path.join(run_dir, "keras"),
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }
    if execution.parallel.ranks > 1:
        variables.update(sums.environment())
    if execution.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    else:
        # NVML counts devices in this order, and so does ``device_index``.
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        variables["NVIDIA_TF32_OVERRIDE"] = "0"
    return variables


def refusal(engine: str, model: Model, training: Training, execution: Execution) -> str:
    """Why an engine cannot do what the parts of the request, each for itself, allow; empty if it can."""
    parallel = execution.parallel
    if parallel.ranks > 1 and execution.native and model.layers_of(BatchNorm) and not parallel.local_batch_norm:
        return (
            "engine %s in native semantics normalises over each rank's share of a batch: "
            "set parallel.local_batch_norm, or use canonical semantics" % engine
        )
    return ""


def _flags(execution: Execution, base: str) -> Dict[str, str]:
    flags = {
        "device": "cpu" if execution.device == "cpu" else "cuda%d" % execution.device_index,
        "floatX": execution.precision or "float32",
        "base_compiledir": base,
        "blas.ldflags": blas_flags(),
        "optimizer": _OPTIMIZERS[execution.compiler],
        "openmp": str(execution.intra_threads > 1),
        # A lock inside a directory of one's own can only be left over; the default is to wait two minutes.
        "compile.timeout": "10",
        "compile.wait": "1",
    }
    if execution.deterministic:
        flags["deterministic"] = "more"
    if execution.device != "cpu":
        flags["force_device"] = "True"
        # 0 takes memory as needed and keeps it, which is Theano's default as well.
        flags["gpuarray.preallocate"] = "0"
        if execution.deterministic:
            flags["dnn.conv.algo_bwd_filter"] = "deterministic"
            flags["dnn.conv.algo_bwd_data"] = "deterministic"
    return flags


def blas_flags() -> str:
    """Linker flags for the OpenBLAS that SciPy's wheel carries; empty if there is none.

    Theano then calls NumPy's BLAS, which is about as fast. Theano splits its settings at commas and linker
    flags at spaces, so a library in such a folder cannot be named.
    """
    found = importlib.util.find_spec("scipy")
    if found is None or not found.origin:
        return ""
    folder = os.path.join(os.path.dirname(os.path.dirname(found.origin)), "scipy.libs")
    if not os.path.isdir(folder) or set(folder) & set(", \t"):
        return ""
    names = sorted(name for name in os.listdir(folder) if name.startswith("libopenblas") and ".so" in name)
    return "-L%s -l:%s" % (folder, names[0]) if names else ""
