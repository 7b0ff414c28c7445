"""What the two engines can do, for ``Engine.info``."""

from typing import Dict

import tensorflow as tf
from tensorflow import keras

from crosstrain_service.capabilities import EXACT, UNSUPPORTED, Feature, declare

from . import horovod_ranks

_EXACT = (
    "layer.convolution1d", "layer.convolution2d", "layer.pool1d", "layer.pool2d", "layer.pool.max",
    "layer.pool.average", "layer.dense", "layer.relu", "layer.flatten", "layer.batch_norm",
    "layer.local_response_norm", "layer.pad",
    "schedule.per_step", "semantics.canonical", "semantics.native", "precision.float32", "precision.float64",
    "device.cpu", "execution.deterministic", "execution.nondeterministic", "execution.intra_threads",
    "execution.inter_threads", "probe",
)
_EMULATED = {
    "layer.convolution.asymmetric_padding": "\"SAME\" where it means the same, else zeros added before",
    "layer.pool.average.include_pad": "zeros added before; windows beyond the padding get a constant factor",
    "layer.pool.average.exclude_pad": "\"SAME\" where it means the same, else zeros added and a constant factor",
    "layer.pool.padding": "\"SAME\" where it means the same, else minus infinity or zeros added before",
    "layer.pool.asymmetric_padding": "\"SAME\" where it means the same, else minus infinity or zeros added before",
    "layer.pool.ceil": "the end is padded with minus infinity (maximum) or zeros and a factor (average)",
    "layer.dropout": "multiplication with the platform's mask",
    "layer.local_response_norm.within_channel": "average pooling of the squares",
}
_PARALLEL = ("parallel.data", "parallel.native", "parallel.batch_norm", "parallel.local_batch_norm")
_CUDA = ("device.cuda", "execution.gpu_memory_growth", "execution.tf32")


def plain_features() -> Dict[str, Feature]:
    """Features of the engine ``tensorflow``: every rule is written in operations."""
    return _features(
        exact=("optimizer.sgd", "optimizer.sgd.momentum", "optimizer.sgd.nesterov", "optimizer.rmsprop",
               "optimizer.adagrad", "optimizer.adam", "optimizer.adadelta", "decay.l2", "decay.decoupled",
               "clip.global_norm", "execution.accumulation") + _PARALLEL,
        emulated={},
        parallel=dict(_distributed(), **{
            "parallel.tensor": Feature(EXACT, "output channels placed on devices of one process"),
            "parallel.pipeline": Feature(EXACT, "layers placed on devices of one process, with micro-batches"),
            "parallel.tensor_pipeline": Feature(EXACT),
            "precision.mixed_float16": Feature(EXACT, "the loss scaled as LossScaleOptimizer does; normalisation and "
                                                      "the loss in float32"),
            "precision.mixed_bfloat16": Feature(EXACT, "normalisation and the loss in float32"),
        }),
    )


def _distributed() -> Dict[str, Feature]:
    """Features of several processes."""
    obstacle = horovod_ranks.obstacle()
    return {
        "parallel.horovod": Feature(UNSUPPORTED, obstacle) if obstacle else Feature(EXACT),
        "parallel.mpi": Feature(UNSUPPORTED, "choose native or horovod"),
        "parallel.hosts": Feature(
            EXACT, "native: TensorFlow's servers listen on all interfaces, without authentication"),
        "parallel.bucket_mib": Feature(EXACT, "several hosts or Horovod"),
    }


def keras_features() -> Dict[str, Feature]:
    """Features of the engine ``keras-tensorflow``: Keras's own optimizers where they have the canonical form."""
    own = "a keras.optimizers.Optimizer of our own; Keras's has another form (epsilon)"
    return _features(
        exact=("optimizer.sgd", "optimizer.sgd.momentum", "optimizer.sgd.nesterov", "optimizer.adadelta",
               "decay.decoupled", "clip.global_norm") + _PARALLEL,
        emulated={
            "optimizer.rmsprop": own, "optimizer.adagrad": own, "optimizer.adam": own,
            "decay.l2": "added to the gradient in a subclass of the optimizer: a Keras regularizer acts before "
                        "clipping and shows in the loss",
        },
        parallel=_keras_distributed(),
    )


def _keras_distributed() -> Dict[str, Feature]:
    found = _distributed()
    for name in ("parallel.tensor", "parallel.pipeline"):
        found[name] = Feature(UNSUPPORTED, "fit trains whole copies of a model")
    for name in ("precision.mixed_float16", "precision.mixed_bfloat16", "execution.accumulation"):
        found[name] = Feature(UNSUPPORTED, "written for the engine tensorflow alone")
    if keras.__version__.split(".")[0] != "2":
        several = "fit of Keras 3 fails with %s"
        found["parallel.hosts"] = Feature(UNSUPPORTED, several % "MultiWorkerMirroredStrategy (keras issue 20585)")
        found["parallel.bucket_mib"] = Feature(UNSUPPORTED, "fit of Keras 3 trains in one process")
        found["parallel.horovod"] = Feature(UNSUPPORTED, several % "Horovod's optimizer and callbacks")
    return found


def _features(exact: tuple, emulated: Dict[str, str], parallel: Dict[str, Feature]) -> Dict[str, Feature]:
    features = declare(
        exact=_EXACT + exact,
        emulated=dict(_EMULATED, **emulated),
    )
    features.update(parallel)
    cuda = tf.test.is_built_with_cuda()
    for name in _CUDA:
        features[name] = Feature(EXACT, "written, not yet tried on a GPU") if cuda else Feature(
            UNSUPPORTED, "this build of TensorFlow is for CPUs only")
    features["compiler.xla"] = Feature(EXACT, "jit_compile=True; every batch size is compiled once")
    return features
