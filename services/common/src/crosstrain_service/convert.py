"""From messages to plain data, checking every field at the boundary.

Every function raises :class:`CrosstrainError` (``INVALID_FIELD``, ``INVALID_MODEL`` or
``INVALID_DATA``) that names the field and its value.
"""

import math
import re
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

from crosstrain_protos.v1 import data_pb2, model_pb2, training_pb2

from . import model as plain
from .cores import available_cores
from .errors import CrosstrainError, invalid_field
from .training import STALL_SECONDS, EarlyStopping, Execution, Parallel, Rule, Training, WeightDecay

# \Z, not $, which would let a line break at the end pass.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_LAYER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_COMPILER = re.compile(r"[a-z0-9_.:-]{1,64}\Z")
#: Learning rates checked at a time: a run of very many steps must not need memory several times their size.
_CHUNK = 1 << 20
MAX_LAYERS = 1000
MAX_SIZE = 1 << 24
MAX_SEED = 2 ** 31 - 1
MAX_STEPS = 10 ** 9
_HOST = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9.:_-]{0,252}[A-Za-z0-9])?$")
#: Ranks of one run.
MAX_RANKS = 1024


def check_name(value: str, field: str) -> str:
    """A name or id that is safe in file names: 1 to 128 letters, digits, "-", "_", "."."""
    if not _NAME.match(value):
        raise invalid_field(field, "%r is not a name of 1 to 128 letters, digits, '-', '_', '.'" % value[:140])
    return value


def check_digest(value: str, field: str, optional: bool = False) -> str:
    """A SHA-256 in lower-case hex."""
    if optional and not value:
        return value
    if not _DIGEST.match(value):
        raise invalid_field(field, "%r is not a SHA-256 of 64 lower-case hex digits" % value[:80])
    return value


def model(message: model_pb2.Model, field: str = "model") -> plain.Model:
    """The model, with all shapes checked."""
    check_name(message.name, field + ".name")
    shape = tuple(message.input_shape)
    if len(shape) not in (2, 3):
        raise invalid_field(field + ".input_shape", "%s must be (channels, height, width) or (channels, length)"
                            % (shape,))
    for size in shape:
        _within(size, 1, MAX_SIZE, field + ".input_shape")
    _within(message.classes, 1, MAX_SIZE, field + ".classes")
    if len(message.layers) > MAX_LAYERS:
        raise invalid_field(field + ".layers", "%d layers, at most %d" % (len(message.layers), MAX_LAYERS))
    layers = tuple(_layer(item, "%s.layers[%d]" % (field, index)) for index, item in enumerate(message.layers))
    return plain.Model(message.name, shape, message.classes, layers).validate()


def _layer(message: model_pb2.Layer, field: str) -> plain.Layer:
    if not _LAYER_NAME.match(message.name):
        raise invalid_field(field + ".name", "%r is not a letter followed by at most 63 letters, digits or '_'"
                            % message.name[:80])
    kind = message.WhichOneof("kind")
    if kind is None:
        raise invalid_field(field, "layer %r has no kind" % message.name)
    return _LAYERS[kind](message.name, getattr(message, kind), "%s.%s" % (field, kind))


def _convolution(name: str, message: Any, field: str) -> plain.Layer:
    return plain.Convolution(
        name, _within(message.out_channels, 1, MAX_SIZE, field + ".out_channels"),
        bias=message.bias, **_geometry(message, field))


def _pool(name: str, message: Any, field: str) -> plain.Layer:
    kinds = {model_pb2.POOL_KIND_MAX: "max", model_pb2.POOL_KIND_AVERAGE: "average"}
    rounding = {model_pb2.ROUND_MODE_FLOOR: "floor", model_pb2.ROUND_MODE_CEIL: "ceil"}
    return plain.Pool(
        name, _choice(message.kind, kinds, field + ".kind"),
        round_mode=_choice(message.round_mode, rounding, field + ".round_mode"),
        count_include_pad=message.count_include_pad, **_geometry(message, field))


def _geometry(message: Any, field: str) -> Dict[str, Tuple[int, ...]]:
    return {
        "kernel": _sizes(message.kernel, 1, field + ".kernel"),
        "stride": _sizes(message.stride, 1, field + ".stride"),
        "pad_begin": _sizes(message.pad_begin, 0, field + ".pad_begin"),
        "pad_end": _sizes(message.pad_end, 0, field + ".pad_end"),
    }


def _dense(name: str, message: Any, field: str) -> plain.Layer:
    return plain.Dense(name, _within(message.units, 1, MAX_SIZE, field + ".units"), message.bias)


def _dropout(name: str, message: Any, field: str) -> plain.Layer:
    return plain.Dropout(name, _real(message.rate, field + ".rate", 0.0, below=1.0))


def _batch_norm(name: str, message: Any, field: str) -> plain.Layer:
    return plain.BatchNorm(
        name,
        _optional(message, "epsilon", field, above=0.0),
        _optional(message, "momentum", field, low=0.0, below=1.0))


def _local_response_norm(name: str, message: Any, field: str) -> plain.Layer:
    size = _within(message.size, 1, MAX_SIZE, field + ".size")
    if size % 2 == 0:
        raise invalid_field(field + ".size", "%d is even; the window must be odd" % size)
    regions = {model_pb2.LRN_REGION_UNSPECIFIED: "across_channels",
               model_pb2.LRN_REGION_ACROSS_CHANNELS: "across_channels",
               model_pb2.LRN_REGION_WITHIN_CHANNEL: "within_channel"}
    return plain.LocalResponseNorm(
        name, size, _real(message.alpha_sum, field + ".alpha_sum"),
        _real(message.beta, field + ".beta"), _real(message.k, field + ".k", above=0.0),
        _choice(message.region, regions, field + ".region"))


def _pad(name: str, message: Any, field: str) -> plain.Layer:
    return plain.Pad(name, _sizes(message.begin, 0, field + ".begin"), _sizes(message.end, 0, field + ".end"))


_LAYERS: Dict[str, Callable[[str, Any, str], plain.Layer]] = {
    "convolution": _convolution,
    "pool": _pool,
    "dense": _dense,
    "relu": lambda name, message, field: plain.Relu(name),
    "flatten": lambda name, message, field: plain.Flatten(name),
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "local_response_norm": _local_response_norm,
    "pad": _pad,
}


def model_message(value: plain.Model) -> model_pb2.Model:
    """The message of a model."""
    message = model_pb2.Model(name=value.name, input_shape=value.input_shape, classes=value.classes)
    for layer in value.layers:
        item = message.layers.add(name=layer.name)
        if isinstance(layer, plain.Convolution):
            item.convolution.CopyFrom(model_pb2.Convolution(
                out_channels=layer.out_channels, kernel=layer.kernel, stride=layer.stride,
                pad_begin=layer.pad_begin, pad_end=layer.pad_end, bias=layer.bias))
        elif isinstance(layer, plain.Pool):
            item.pool.CopyFrom(model_pb2.Pool(
                kind=model_pb2.PoolKind.Value("POOL_KIND_" + layer.kind.upper()),
                kernel=layer.kernel, stride=layer.stride, pad_begin=layer.pad_begin, pad_end=layer.pad_end,
                round_mode=model_pb2.RoundMode.Value("ROUND_MODE_" + layer.round_mode.upper()),
                count_include_pad=layer.count_include_pad))
        elif isinstance(layer, plain.Dense):
            item.dense.CopyFrom(model_pb2.Dense(units=layer.units, bias=layer.bias))
        elif isinstance(layer, plain.Relu):
            item.relu.SetInParent()
        elif isinstance(layer, plain.Flatten):
            item.flatten.SetInParent()
        elif isinstance(layer, plain.Dropout):
            item.dropout.CopyFrom(model_pb2.Dropout(rate=layer.rate))
        elif isinstance(layer, plain.BatchNorm):
            item.batch_norm.CopyFrom(model_pb2.BatchNorm(epsilon=layer.epsilon, momentum=layer.momentum))
        elif isinstance(layer, plain.LocalResponseNorm):
            # Across channels stays unset, as before there was a choice: digests of models do not change.
            within = layer.region == "within_channel"
            item.local_response_norm.CopyFrom(model_pb2.LocalResponseNorm(
                size=layer.size, alpha_sum=layer.alpha_sum, beta=layer.beta, k=layer.k,
                region=model_pb2.LRN_REGION_WITHIN_CHANNEL if within else model_pb2.LRN_REGION_UNSPECIFIED))
        else:
            item.pad.CopyFrom(model_pb2.Pad(begin=layer.begin, end=layer.end))
    return message


def dataset(message: data_pb2.Dataset, network: plain.Model, field: str) -> data_pb2.Dataset:
    """A data set reference that fits a model; returns it unchanged."""
    check_digest(message.pixels_digest, field + ".pixels_digest")
    check_digest(message.labels_digest, field + ".labels_digest")
    if message.samples < 1:
        raise invalid_field(field + ".samples", "%d; at least one sample is needed" % message.samples)
    if tuple(message.input_shape) != network.input_shape:
        raise CrosstrainError("INVALID_DATA", "samples have the shape %s, the model takes %s"
                              % (tuple(message.input_shape), network.input_shape), field + ".input_shape")
    if message.classes > network.classes:
        raise CrosstrainError("INVALID_DATA", "the data has %d classes, the model %d"
                              % (message.classes, network.classes), field + ".classes")
    divisor = _real(message.divisor, field + ".divisor", above=0.0)
    with np.errstate(over="ignore"):
        single = np.float32(divisor)
    if not (np.isfinite(single) and single > 0):
        raise invalid_field(field + ".divisor", "%r is no positive number in single precision" % divisor)
    return message


def execution(message: training_pb2.Execution, field: str = "execution") -> Execution:
    """Execution settings. An unspecified device is "cpu" (services with a GPU resolve it before)."""
    proto = training_pb2
    cores = available_cores()
    affinity = tuple(message.cpu_affinity)
    for core in affinity:
        if core not in cores:
            raise invalid_field(field + ".cpu_affinity", "core %d is not available here (%s)"
                                % (core, ", ".join(map(str, cores))))
    threads = _within(message.intra_threads, 0, 4096, field + ".intra_threads")
    return Execution(
        semantics=_choice(message.semantics, {0: "canonical", 1: "canonical", 2: "native"}, field + ".semantics"),
        mode=_choice(message.mode, {0: "parity", 1: "parity", 2: "speed"}, field + ".mode"),
        precision=_choice(message.precision, {
            0: "", proto.PRECISION_FLOAT32: "float32", proto.PRECISION_FLOAT64: "float64",
            proto.PRECISION_MIXED_FLOAT16: "mixed_float16", proto.PRECISION_MIXED_BFLOAT16: "mixed_bfloat16",
        }, field + ".precision"),
        device=_choice(message.device.kind, {
            0: "cpu", proto.DEVICE_KIND_CPU: "cpu", proto.DEVICE_KIND_CUDA: "cuda"}, field + ".device.kind"),
        device_index=_within(message.device.index, 0, 1023, field + ".device.index"),
        intra_threads=threads or len(affinity or cores),
        inter_threads=_within(message.inter_threads, 0, 4096, field + ".inter_threads"),
        cpu_affinity=affinity,
        prefetch=_within(message.prefetch, 0, 1024, field + ".prefetch"),
        deterministic=message.deterministic,
        compiler=_compiler(message.compiler, field + ".compiler"),
        gpu_memory_growth=message.gpu_memory_growth,
        allow_tf32=message.allow_tf32,
        checkpoint_every_steps=_within(message.checkpoint_every_steps, 0, MAX_STEPS, field + ".checkpoint_every_steps"),
        accumulation_steps=_within(message.accumulation_steps, 0, 4096, field + ".accumulation_steps") or 1,
        parallel=parallel(message.parallel, field + ".parallel"),
    )


def parallel(message: training_pb2.Parallel, field: str = "execution.parallel") -> Parallel:
    """How training is spread over ranks."""
    proto = training_pb2
    sizes = {name: _within(getattr(message, name), 0, MAX_RANKS, "%s.%s" % (field, name)) or 1
             for name in ("data", "tensor", "pipeline")}
    if message.backend not in ("", "native", "horovod", "mpi"):
        raise invalid_field(field + ".backend", "%r is none of native, horovod, mpi" % message.backend[:80])
    result = Parallel(
        backend=message.backend or "native",
        micro_batches=_within(message.micro_batches, 0, 4096, field + ".micro_batches"),
        bucket_mib=_within(message.bucket_mib, 0, 4096, field + ".bucket_mib"),
        local_batch_norm=message.local_batch_norm,
        on_rank_loss=_choice(message.on_rank_loss, {
            0: "restart", proto.RANK_LOSS_RESTART: "restart", proto.RANK_LOSS_SHRINK: "shrink",
            proto.RANK_LOSS_FAIL: "fail"}, field + ".on_rank_loss"),
        min_data=_within(message.min_data, 0, sizes["data"], field + ".min_data") or 1,
        stall_seconds=_within(message.stall_seconds, 0, 10 ** 6, field + ".stall_seconds")
        if message.HasField("stall_seconds") else STALL_SECONDS,
        **sizes)
    if result.ranks > MAX_RANKS:
        raise invalid_field(field, "%d x %d x %d are %d ranks; at most %d are possible" % (
            result.data, result.tensor, result.pipeline, result.ranks, MAX_RANKS))
    if result.micro_batches and result.pipeline == 1:
        raise invalid_field(field + ".micro_batches", "%d without a pipeline" % result.micro_batches)
    return result


def group(message: training_pb2.Group, parallel: Parallel, field: str = "group") -> training_pb2.Group:
    """A group, checked against the number of ranks."""
    check_name(message.group_id, field + ".group_id")
    if not 2 <= len(message.ranks) <= MAX_RANKS:
        raise invalid_field(field + ".ranks", "%d members; 2 to %d are possible" % (len(message.ranks), MAX_RANKS))
    for index, count in enumerate(message.ranks):
        _within(count, 1, MAX_RANKS, "%s.ranks[%d]" % (field, index))
    if sum(message.ranks) != parallel.ranks:
        raise invalid_field(field + ".ranks", "%d in all, but spec.execution.parallel asks for %d ranks"
                            % (sum(message.ranks), parallel.ranks))
    _within(message.member, 0, len(message.ranks) - 1, field + ".member")
    if len(message.secret) != 32:
        raise invalid_field(field + ".secret", "%d bytes, needed are 32" % len(message.secret))
    if not _HOST.match(message.host):
        raise invalid_field(field + ".host", "%r is no host name or IP address" % message.host[:80])
    if message.member and not (_HOST.match(message.leader_host) and 0 < message.leader_port < 65536):
        raise invalid_field(field + ".leader_host", "%r port %d is no address of a leader"
                            % (message.leader_host[:80], message.leader_port))
    return message


def training(message: training_pb2.Training, learning_rates: np.ndarray, native: bool = False,
             field: str = "training") -> Training:
    """Training settings; ``learning_rates`` is the array named by its digest (or an empty one)."""
    decay = None
    if message.HasField("weight_decay"):
        item = message.weight_decay
        coupling = training_pb2.WeightDecayCoupling
        choices = {coupling.Value("WEIGHT_DECAY_COUPLING_L2"): False,
                   coupling.Value("WEIGHT_DECAY_COUPLING_DECOUPLED"): True}
        if not item.rate:
            choices[0] = False
        decay = WeightDecay(
            _real(item.rate, field + ".weight_decay.rate", 0.0),
            _choice(item.coupling, choices, field + ".weight_decay.coupling"),
            item.include_biases)
    stopping = None
    if message.HasField("early_stopping"):
        entry = message.early_stopping
        stopping = EarlyStopping(
            _real(entry.validation_share, field + ".early_stopping.validation_share", above=0.0, below=1.0),
            _within(entry.patience, 1, MAX_SIZE, field + ".early_stopping.patience"),
            _real(entry.min_delta, field + ".early_stopping.min_delta", 0.0))
    rates = np.asarray(learning_rates)
    if rates.dtype != np.float64 or rates.ndim != 1:
        raise invalid_field(field + ".learning_rates_digest", "not a one-dimensional float64 array")
    if rates.size > MAX_STEPS:
        raise invalid_field(field + ".learning_rates_digest", "%d learning rates, at most %d" % (rates.size, MAX_STEPS))
    for start in range(0, rates.size, _CHUNK):
        part = rates[start:start + _CHUNK]
        good = np.isfinite(part) & (part > 0)
        if not good.all():
            bad = start + int(np.flatnonzero(~good)[0])
            raise invalid_field(field + ".learning_rates_digest", "step %d has the learning rate %r; it must be "
                                "greater than 0" % (bad, float(rates[bad])))
    return Training(
        epochs=_within(message.epochs, 1, MAX_SIZE, field + ".epochs"),
        max_steps=_within(message.max_steps, 0, MAX_STEPS, field + ".max_steps"),
        batch_size=_within(message.batch_size, 1, MAX_SIZE, field + ".batch_size"),
        drop_last=message.drop_last,
        keep_order=message.keep_order,
        seed=_within(message.seed, 0, MAX_SEED, field + ".seed"),
        rule=_rule(message.optimizer, native, field + ".optimizer"),
        weight_decay=decay,
        clip_norm=_real(message.clip_norm, field + ".clip_norm", 0.0),
        early_stopping=stopping,
        learning_rates=rates,
    )


#: Constants of each rule and their bounds: (at least, above, below).
_CONSTANTS: Dict[str, Dict[str, Any]] = {
    "sgd": {"momentum": (0.0, None, 1.0), "nesterov": None},
    "rmsprop": {"rho": (0.0, None, 1.0), "epsilon": (None, 0.0, None)},
    "adagrad": {"epsilon": (None, 0.0, None), "initial_accumulator": (0.0, None, None)},
    "adam": {"beta1": (0.0, None, 1.0), "beta2": (0.0, None, 1.0), "epsilon": (None, 0.0, None)},
    "adadelta": {"rho": (0.0, None, 1.0), "epsilon": (None, 0.0, None)},
}


def _rule(message: training_pb2.Optimizer, native: bool, field: str) -> Rule:
    name = message.WhichOneof("rule")
    if name is None:
        raise invalid_field(field, "no optimizer is set; known are %s" % ", ".join(sorted(_CONSTANTS)))
    item = getattr(message, name)
    constants: Dict[str, Any] = {}
    for constant, bounds in _CONSTANTS[name].items():
        path = "%s.%s.%s" % (field, name, constant)
        if not item.HasField(constant):
            if not native:
                raise invalid_field(path, "is not set; canonical semantics needs every constant")
            continue
        value = getattr(item, constant)
        if bounds is not None:
            value = _real(value, path, *bounds)
        constants[constant] = value
    return Rule(name, **constants)


def _compiler(value: str, field: str) -> str:
    if value and not _COMPILER.match(value):
        raise invalid_field(field, "%r is not a compiler name" % value[:80])
    return value


def _sizes(values: Any, low: int, field: str) -> Tuple[int, ...]:
    return tuple(_within(value, low, MAX_SIZE, field) for value in values)


def _within(value: int, low: int, high: int, field: str) -> int:
    if not low <= value <= high:
        raise invalid_field(field, "%d is not within %d to %d" % (value, low, high))
    return int(value)


def _real(value: float, field: str, low: Optional[float] = None, above: Optional[float] = None,
          below: Optional[float] = None) -> float:
    if not math.isfinite(value):
        raise invalid_field(field, "%r is not a finite number" % value)
    if low is not None and value < low:
        raise invalid_field(field, "%r must be at least %r" % (value, low))
    if above is not None and value <= above:
        raise invalid_field(field, "%r must be greater than %r" % (value, above))
    if below is not None and value >= below:
        raise invalid_field(field, "%r must be less than %r" % (value, below))
    return float(value)


def _optional(message: Any, name: str, field: str, low: Optional[float] = None, above: Optional[float] = None,
              below: Optional[float] = None) -> Optional[float]:
    if not message.HasField(name):
        return None
    return _real(getattr(message, name), "%s.%s" % (field, name), low, above, below)


def _choice(value: Any, choices: Dict[Any, Any], field: str) -> Any:
    if value not in choices:
        raise invalid_field(field, "%s is not set or not known" % value)
    return choices[value]
