"""Process-wide settings of TensorFlow: threads, determinism, maths mode and device.

TensorFlow takes most of them only before its first operation, and once per process. The paths for
NVIDIA GPUs follow TensorFlow's documentation but have not been run on a GPU yet.
"""

import os
from typing import Dict, Optional

import tensorflow as tf

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import Model, Pool
from crosstrain_service.training import Execution

from . import needs_op_determinism

_determinism: Optional[bool] = None


def configure(execution: Execution, model: Model) -> str:
    """Applies the settings and returns the name of the device to use.

    Raises ``ENVIRONMENT`` if the process already runs with other settings or the device is not there, and
    ``UNSUPPORTED`` for deterministic max pools compiled by XLA for a GPU.
    """
    if needs_op_determinism(execution) and execution.compiler == "xla":
        if any(layer.kind == "max" for layer in model.layers_of(Pool)):
            raise CrosstrainError("UNSUPPORTED", "XLA has no deterministic gradient of a max pool on a GPU; choose "
                                  "compiler \"\" or deterministic: false")
    try:
        _configure_devices(execution)
        _configure_threads(execution)
    except RuntimeError as error:
        raise CrosstrainError("ENVIRONMENT", "TensorFlow runs with other threads or devices already; start a new "
                              "process for this run") from error
    _configure_determinism(needs_op_determinism(execution))
    tf.config.experimental.enable_tensor_float_32_execution(bool(execution.allow_tf32))
    return "/GPU:0" if execution.device == "cuda" else "/CPU:0"


def _configure_threads(execution: Execution) -> None:
    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() != execution.intra_threads:
        threading.set_intra_op_parallelism_threads(execution.intra_threads)
    if threading.get_inter_op_parallelism_threads() != execution.inter_threads:
        threading.set_inter_op_parallelism_threads(execution.inter_threads)


def _configure_determinism(wanted: bool) -> None:
    global _determinism
    if _determinism and not wanted:
        raise CrosstrainError("ENVIRONMENT", "deterministic kernels cannot be switched off again in this process")
    if wanted:
        tf.config.experimental.enable_op_determinism()
    _determinism = wanted


def devices_of_process(execution: Execution) -> int:
    """Devices that this process drives, one for each of its ranks."""
    return max(1, execution.parallel.ranks // execution.ranks.size)


def _configure_logical_devices(wanted: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    present = len(tf.config.get_logical_device_configuration(cpu) or [None])
    if present < wanted:
        devices = [tf.config.LogicalDeviceConfiguration()] * wanted
        tf.config.set_logical_device_configuration(cpu, devices)


def _configure_devices(execution: Execution) -> None:
    count = devices_of_process(execution)
    if execution.device == "cpu":
        _configure_logical_devices(count)
        if tf.config.get_visible_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")
        return
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise CrosstrainError("ENVIRONMENT", "TensorFlow finds no GPU %d" % execution.device_index)
    # CUDA_VISIBLE_DEVICES narrows the choice down to the wanted ones before the import.
    if len(gpus) > count:
        first = min(execution.device_index, len(gpus) - count)
        gpus = gpus[first:first + count]
    if len(gpus) < count:
        raise CrosstrainError("ENVIRONMENT", "%d ranks need a GPU each, TensorFlow finds %d" % (count, len(gpus)))
    if tf.config.get_visible_devices("GPU") != gpus:
        tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        if tf.config.experimental.get_memory_growth(gpu) != execution.gpu_memory_growth:
            tf.config.experimental.set_memory_growth(gpu, execution.gpu_memory_growth)


def fingerprint(execution: Execution) -> Dict[str, str]:
    """Facts about the maths in use."""
    threading = tf.config.threading
    facts = {
        "tensorflow.version": tf.__version__,
        "tensorflow.git_version": str(tf.version.GIT_VERSION),
        "threads.intra": str(threading.get_intra_op_parallelism_threads()),
        "threads.inter": str(threading.get_inter_op_parallelism_threads() or "default"),
        "deterministic": _flag(execution.deterministic),
        "op_determinism": _flag(needs_op_determinism(execution)),
        "tf32": _flag(execution.device == "cuda" and execution.allow_tf32),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        "compiler": execution.compiler or "none",
    }
    for name in ("TF_ENABLE_ONEDNN_OPTS", "TF_DETERMINISTIC_OPS", "TF_CPP_MIN_LOG_LEVEL", "XLA_FLAGS",
                 "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"):
        if name in os.environ:
            facts["env." + name] = os.environ[name]
    if execution.device == "cuda":
        build = tf.sysconfig.get_build_info()
        facts["cuda.version"] = str(build.get("cuda_version", ""))
        facts["cudnn.version"] = str(build.get("cudnn_version", ""))
        facts["gpu.memory_growth"] = _flag(execution.gpu_memory_growth)
    return facts


def allocator_peak_bytes(device: str) -> Optional[int]:
    """Peak of TensorFlow's GPU allocator; None on a CPU, where it keeps no count."""
    if not device.startswith("/GPU"):
        return None
    return int(tf.config.experimental.get_memory_info(device[1:])["peak"])


def synchronize(device: str) -> None:
    """Waits until a GPU has finished all work."""
    if not device.startswith("/GPU"):
        return
    wait = getattr(tf.test.experimental, "sync_devices", None)
    if wait is not None:
        wait()
    else:
        with tf.device(device):
            tf.zeros(()).numpy()


def _flag(value: bool) -> str:
    return "true" if value else "false"
