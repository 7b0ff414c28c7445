"""TensorFlow engines: ``tensorflow`` (operations and variables) and ``keras-tensorflow`` (``model.fit``).

Both work with TensorFlow 2.12 and Keras 2.12 up to TensorFlow 2.21 and Keras 3. Importing this module does
not import TensorFlow, because :func:`environment` has to take effect before.
"""

import os
from typing import Dict

from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.training import Execution, Training

from . import surroundings

#: Engine name to "module:Class".
ENGINES = {
    "tensorflow": "crosstrain_tensorflow.engine:TensorFlowEngine",
    "keras-tensorflow": "crosstrain_tensorflow.keras.engine:KerasEngine",
}


def environment(engine: str, execution: Execution, run_dir: str) -> Dict[str, str]:
    """Environment variables that must be set before TensorFlow is imported.

    Keras is given a configuration folder of its own inside ``run_dir``, so that no ``keras.json`` of the user's
    changes the function. ``TF_ENABLE_ONEDNN_OPTS`` and ``XLA_FLAGS`` are taken over from the caller's environment.
    Of several processes each learns from ``TF_CONFIG`` who the others are.
    """
    threads = str(execution.intra_threads)
    variables = {
        "CUDA_VISIBLE_DEVICES": _visible_devices(execution),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_DETERMINISTIC_OPS": "1" if needs_op_determinism(execution) else "0",
        "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1"),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true" if execution.gpu_memory_growth else "false",
        "TF_USE_LEGACY_KERAS": "0",
        "KERAS_BACKEND": "tensorflow",
        "KERAS_HOME": os.path.join(run_dir, "keras"),
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }
    if execution.device == "cuda":
        variables["NVIDIA_TF32_OVERRIDE"] = "1" if execution.allow_tf32 else "0"
        if execution.deterministic:
            variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
            flags = [os.environ.get("XLA_FLAGS", ""), "--xla_gpu_deterministic_ops=true"]
            variables["XLA_FLAGS"] = " ".join(flags).strip()
    if execution.ranks.size > 1:
        variables.update(surroundings.of_ranks(execution))
    return variables


def processes(engine: str, execution: Execution, ranks: int) -> int:
    """Processes that the ``ranks`` ranks of one host take.

    Horovod takes one each. Else one drives all devices of a host, if that holds all ranks. With ranks on other
    hosts every rank is a process, because ``MultiWorkerMirroredStrategy`` uses one CPU device of a process alone.
    """
    alone = execution.parallel.backend == "native" and ranks == execution.parallel.ranks
    return 1 if alone else ranks


def refusal(engine: str, model: Model, training: Training, execution: Execution) -> str:
    """Why this combination of features, each of which is declared, cannot run; empty if it can."""
    parallel = execution.parallel
    normed = bool(model.layers_of(BatchNorm))
    if execution.accumulation_steps > 1 and normed and not execution.native:
        return "batch norm over a whole batch that is computed in parts"
    if parallel.ranks == 1:
        return ""
    if parallel.tensor * parallel.pipeline > 1:
        if parallel.backend != "native" or execution.ranks.members > 1:
            return "tensor or pipeline parallel over several processes: one places layers on its devices"
        if parallel.pipeline > 1 and parallel.micro_batches != 1 and normed and not execution.native:
            return "batch norm over a whole batch that is computed in micro-batches; choose micro_batches 1"
        if parallel.tensor > 1 and execution.native:
            return "tensor parallel with Keras's optimizers; choose canonical semantics"
    if execution.compiler == "xla":
        return "XLA on several ranks: it compiles a step for one device"
    if parallel.local_batch_norm and not execution.native:
        return "batch norm over each rank's share in canonical semantics, where it is over the whole batch"
    if parallel.bucket_mib and parallel.backend == "native" and execution.ranks.members == 1:
        return "a size of gradient buckets on one host, of which tf.distribute.MirroredStrategy knows nothing"
    if execution.native and execution.precision == "mixed_float16" and parallel.backend == "native":
        return "scaling the loss of replicas with Keras's optimizers, which cannot leave a step out there"
    return ""


def needs_op_determinism(execution: Execution) -> bool:
    """Whether TensorFlow's own determinism has to be enabled for a deterministic run.

    Not for XLA on a CPU: its code has no nondeterministic kernels there, yet with the switch on TensorFlow
    refuses to compile, for any device, the operations that XLA lacks a deterministic GPU kernel for.
    """
    return execution.deterministic and not (execution.compiler == "xla" and execution.device == "cpu")


def _visible_devices(execution: Execution) -> str:
    if execution.device != "cuda":
        return ""
    allowed = [item.strip() for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if item.strip()]
    first = execution.device_index
    wanted = range(first, first + max(1, execution.parallel.ranks // execution.ranks.size))
    return ",".join(allowed[index] if index < len(allowed) else str(index) for index in wanted)
