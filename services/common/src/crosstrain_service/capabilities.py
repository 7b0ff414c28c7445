"""The closed list of features an engine may declare, and what a piece of work needs.

A feature that an engine does not list is unsupported. A run is refused before anything
starts if it needs an unsupported feature; nothing degrades silently.
"""

import itertools
from typing import Dict, Iterable, List, NamedTuple, Optional, Set

from .errors import CrosstrainError
from .model import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    LocalResponseNorm,
    Model,
    Pad,
    Pool,
    Relu,
)
from .training import Execution, Parallel, Training

#: Learning rates looked at together.
_CHUNK = 1 << 20

EXACT = "exact"
EMULATED = "emulated"
UNSUPPORTED = "unsupported"


class Feature(NamedTuple):
    """How an engine provides a feature (:data:`EXACT`, ...) and a note for people."""

    support: str
    note: str = ""


#: Every feature, with its meaning.
FEATURES: Dict[str, str] = {
    "layer.convolution1d": "convolution over (C, L)",
    "layer.convolution2d": "convolution over (C, H, W)",
    "layer.convolution.asymmetric_padding": "convolution padded differently before and after",
    "layer.pool1d": "pooling over (C, L)",
    "layer.pool2d": "pooling over (C, H, W)",
    "layer.pool.max": "maximum pooling, gradient to the first maximum",
    "layer.pool.average": "average pooling without padding",
    "layer.pool.average.include_pad": "padded average pooling, padding counted in the divisor",
    "layer.pool.average.exclude_pad": "padded average pooling, padding not counted",
    "layer.pool.padding": "padded pooling, the same before and after",
    "layer.pool.asymmetric_padding": "pooling padded differently before and after",
    "layer.pool.ceil": "output size rounded up",
    "layer.dense": "fully connected",
    "layer.relu": "rectified linear unit, gradient 0 at 0",
    "layer.flatten": "flatten in C-H-W order",
    "layer.dropout": "inverted dropout with the platform's masks",
    "layer.batch_norm": "batch normalisation with explicit epsilon",
    "layer.local_response_norm": "local response normalisation across channels",
    "layer.local_response_norm.within_channel": "local response normalisation within a channel",
    "layer.pad": "explicit zero padding",
    "optimizer.sgd": "SGD without momentum",
    "optimizer.sgd.momentum": "SGD with momentum",
    "optimizer.sgd.nesterov": "SGD with Nesterov momentum",
    "optimizer.rmsprop": "RMSProp, epsilon outside the root",
    "optimizer.adagrad": "Adagrad, epsilon outside the root",
    "optimizer.adam": "Adam, epsilon beside the corrected root",
    "optimizer.adadelta": "AdaDelta",
    "decay.l2": "L2 weight decay through the update rule",
    "decay.decoupled": "decoupled weight decay",
    "clip.global_norm": "clipping by the global norm of all gradients",
    "schedule.per_step": "a learning rate for every step",
    "semantics.canonical": "the canonical function",
    "semantics.native": "the framework's own conventions",
    "precision.float32": "IEEE single precision",
    "precision.float64": "IEEE double precision",
    "device.cpu": "runs on a CPU",
    "device.cuda": "runs on an NVIDIA GPU",
    "execution.deterministic": "deterministic kernels can be demanded",
    "execution.nondeterministic": "deterministic kernels can be switched off",
    "execution.intra_threads": "threads within an operation can be set",
    "execution.inter_threads": "threads between operations can be set",
    "execution.cpu_affinity": "can be bound to cores",
    "execution.prefetch": "batches prepared ahead of use",
    "execution.gpu_memory_growth": "GPU memory taken as needed",
    "execution.tf32": "TF32 maths can be allowed",
    "compiler.xla": "XLA",
    "compiler.torch.compile": "torch.compile",
    "compiler.theano:fast_run": "Theano with all optimisations",
    "compiler.theano:fast_compile": "Theano with few optimisations",
    "probe": "intermediate values and gradients can be recorded",
    "precision.mixed_float16": "matrix products in float16, loss scaled",
    "precision.mixed_bfloat16": "matrix products in bfloat16",
    "execution.accumulation": "a batch computed in parts before its update",
    "parallel.data": "data parallel over several ranks",
    "parallel.tensor": "tensor parallel over several ranks",
    "parallel.pipeline": "pipeline parallel over several ranks",
    "parallel.data_tensor": "data and tensor parallel at the same time",
    "parallel.data_pipeline": "data and pipeline parallel at the same time",
    "parallel.tensor_pipeline": "tensor and pipeline parallel at the same time",
    "parallel.native": "the framework's own communication",
    "parallel.horovod": "communication by Horovod",
    "parallel.mpi": "communication by MPI",
    "parallel.hosts": "ranks on several hosts",
    "parallel.bucket_mib": "size of gradient buckets can be set",
    "parallel.batch_norm": "batch normalisation over the whole batch of all ranks",
    "parallel.local_batch_norm": "batch normalisation over each rank's share (native semantics)",
}

#: Provided by the common layer for every engine.
COMMON: Dict[str, Feature] = {
    "schedule.per_step": Feature(EXACT),
    "execution.cpu_affinity": Feature(EXACT),
    "execution.prefetch": Feature(EXACT),
}


def declare(exact: Iterable[str] = (), emulated: Optional[Dict[str, str]] = None,
            unsupported: Optional[Dict[str, str]] = None) -> Dict[str, Feature]:
    """A feature table from names: ``emulated`` and ``unsupported`` map names to notes.

    Raises ``ValueError`` on a name that is not in :data:`FEATURES`.
    """
    table = dict(COMMON)
    table.update((name, Feature(EXACT)) for name in exact)
    table.update((name, Feature(EMULATED, note)) for name, note in (emulated or {}).items())
    table.update((name, Feature(UNSUPPORTED, note)) for name, note in (unsupported or {}).items())
    unknown = sorted(set(table) - set(FEATURES))
    if unknown:
        raise ValueError("unknown features: %s" % ", ".join(unknown))
    return table


def features_of_model(model: Model) -> Set[str]:
    """Features that the layers of a model need."""
    needed: Set[str] = set()
    for layer in model.layers:
        if isinstance(layer, Convolution):
            needed.add("layer.convolution%dd" % len(layer.kernel))
            if layer.pad_begin != layer.pad_end:
                needed.add("layer.convolution.asymmetric_padding")
        elif isinstance(layer, Pool):
            needed.update(_features_of_pool(layer))
        elif isinstance(layer, LocalResponseNorm) and layer.region == "within_channel":
            needed.add("layer.local_response_norm.within_channel")
        else:
            needed.add({
                Dense: "layer.dense", Relu: "layer.relu", Flatten: "layer.flatten",
                Dropout: "layer.dropout", BatchNorm: "layer.batch_norm",
                LocalResponseNorm: "layer.local_response_norm", Pad: "layer.pad",
            }[type(layer)])
    return needed


def _features_of_pool(layer: Pool) -> Set[str]:
    needed = {"layer.pool%dd" % len(layer.kernel), "layer.pool." + layer.kind}
    padded = any(layer.pad_begin) or any(layer.pad_end)
    if padded:
        needed.add("layer.pool.padding")
        if layer.kind == "average":
            needed.add("layer.pool.average.%s_pad" % ("include" if layer.count_include_pad else "exclude"))
    if layer.pad_begin != layer.pad_end:
        needed.add("layer.pool.asymmetric_padding")
    if layer.round_mode == "ceil":
        needed.add("layer.pool.ceil")
    return needed


def features_of_training(training: Training) -> Set[str]:
    """Features that the settings of a training need."""
    rule = training.rule
    needed = {"optimizer." + rule.name}
    if rule.name == "sgd" and rule.momentum:
        needed.add("optimizer.sgd.nesterov" if rule.nesterov else "optimizer.sgd.momentum")
    decay = training.weight_decay
    if decay is not None and decay.rate:
        needed.add("decay.decoupled" if decay.decoupled else "decay.l2")
    if training.clip_norm:
        needed.add("clip.global_norm")
    rates = training.learning_rates
    if any((rates[start:start + _CHUNK] != rates[0]).any() for start in range(0, len(rates), _CHUNK)):
        needed.add("schedule.per_step")
    return needed


def features_of_execution(execution: Execution) -> Set[str]:
    """Features that the settings of an execution need."""
    needed = {"semantics." + execution.semantics, "device." + execution.device}
    if execution.precision:
        needed.add("precision." + execution.precision)
    needed.add("execution.deterministic" if execution.deterministic else "execution.nondeterministic")
    if execution.inter_threads:
        needed.add("execution.inter_threads")
    if execution.cpu_affinity:
        needed.add("execution.cpu_affinity")
    if execution.prefetch:
        needed.add("execution.prefetch")
    if execution.gpu_memory_growth:
        needed.add("execution.gpu_memory_growth")
    if execution.allow_tf32:
        needed.add("execution.tf32")
    if execution.compiler:
        needed.add("compiler." + execution.compiler)
    if execution.accumulation_steps > 1:
        needed.add("execution.accumulation")
    if execution.parallel.ranks > 1:
        needed.update(_features_of_parallel(execution.parallel))
    return needed


def features_of_both(model: Model, execution: Execution) -> Set[str]:
    """Features that a model needs on several ranks."""
    parallel = execution.parallel
    if parallel.data > 1 and model.layers_of(BatchNorm) and not parallel.local_batch_norm:
        return {"parallel.batch_norm"}
    return set()


def _features_of_parallel(parallel: Parallel) -> Set[str]:
    split = [name for name in ("data", "tensor", "pipeline") if getattr(parallel, name) > 1]
    needed = {"parallel." + name for name in split} | {"parallel." + parallel.backend}
    needed.update("parallel.%s_%s" % pair for pair in itertools.combinations(split, 2))
    if parallel.bucket_mib:
        needed.add("parallel.bucket_mib")
    if parallel.local_batch_norm:
        needed.add("parallel.local_batch_norm")
    return needed


def require(engine: str, features: Dict[str, Feature], needed: Iterable[str]) -> None:
    """Raises ``UNSUPPORTED`` naming the engine and everything it lacks of ``needed``."""
    lacking: List[str] = []
    for name in sorted(set(needed)):
        feature = features.get(name)
        if feature is None or feature.support == UNSUPPORTED:
            note = feature.note if feature is not None else ""
            lacking.append("%s%s" % (name, " (%s)" % note if note else ""))
    if lacking:
        raise CrosstrainError("UNSUPPORTED", "engine %s does not support: %s" % (engine, "; ".join(lacking)))
