"""A job as the messages that are sent to services, and the learning rates they refer to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crosstrain_protos.v1 import data_pb2, run_pb2, training_pb2
from crosstrain_service.convert import model_message
from crosstrain_service.model import Model
from crosstrain_service.streams import steps_per_epoch

from . import schedule
from .base import MAX_STEPS
from .document import Path, field_name, line_of
from .errors import SpecError, Violation
from .job import JobSpec
from .optimizers import AdamW, OptimizerSpec
from .parallel import ParallelSpec, parse_entry

_DEVICES = {
    "auto": training_pb2.DEVICE_KIND_UNSPECIFIED,
    "cpu": training_pb2.DEVICE_KIND_CPU,
    "cuda": training_pb2.DEVICE_KIND_CUDA,
}
_PRECISIONS = {
    None: training_pb2.PRECISION_UNSPECIFIED,
    "float32": training_pb2.PRECISION_FLOAT32,
    "float64": training_pb2.PRECISION_FLOAT64,
    "mixed_float16": training_pb2.PRECISION_MIXED_FLOAT16,
    "mixed_bfloat16": training_pb2.PRECISION_MIXED_BFLOAT16,
}
_RANK_LOSS = {
    "restart": training_pb2.RANK_LOSS_RESTART,
    "shrink": training_pb2.RANK_LOSS_SHRINK,
    "fail": training_pb2.RANK_LOSS_FAIL,
}
_COUPLINGS = {
    "l2": training_pb2.WEIGHT_DECAY_COUPLING_L2,
    "decoupled": training_pb2.WEIGHT_DECAY_COUPLING_DECOUPLED,
}


def training_rows(spec: JobSpec, samples: int) -> int:
    """Training samples that are left after the validation split of early stopping."""
    stopping = spec.training.early_stopping
    return samples if stopping is None else samples - max(1, round(samples * stopping.validation_share))


def total_steps(spec: JobSpec, samples: int) -> int:
    """Steps of the whole job for ``samples`` training rows after the validation split.

    Raises:
        SpecError: there would be no step, or too many.
    """
    training = spec.training
    if samples < 1:
        stopping: Path = ("training", "early_stopping")
        raise _refused(spec, stopping, "the validation split leaves no sample to train on")
    for engine in spec.engines:
        ranks = spec.parallel_of(engine).data
        if ranks > samples:
            count = f"{samples} training {'sample' if samples == 1 else 'samples'}"
            own = "data" in parse_entry(engine).settings
            path: Path = ("engines", spec.engines.index(engine)) if own else ("parallel", "data")
            raise _refused(spec, path, f"{engine}: {count} cannot be split over {ranks} data ranks")
    if training.batch_size > samples:
        message = f"{training.batch_size} is more than the {samples} training samples"
        if training.drop_last:
            message += ", and without the last partial batch no step would be left"
        raise _refused(spec, ("training", "batch_size"), message)
    total = training.epochs * steps_per_epoch(samples, training.batch_size, training.drop_last)
    total = min(total, training.max_steps) if training.max_steps else total
    if total > MAX_STEPS:
        raise _refused(spec, ("training", "epochs"), f"{total} steps; at most {MAX_STEPS} are possible")
    return total


def learning_rates(spec: JobSpec, samples: int) -> NDArray[np.float64]:
    """Learning rate of every step, (total steps,) float64; see :mod:`crosstrain.spec.schedule`.

    Args:
        samples: training rows after the validation split (:func:`training_rows`).

    Raises:
        SpecError: no step, too many steps, or a rate that is not greater than 0.
    """
    total = total_steps(spec, samples)
    training = spec.training
    per_epoch = steps_per_epoch(samples, training.batch_size, training.drop_last)
    base = _optimizer(spec).rule.learning_rate
    result = schedule.rates(base, training.schedule, training.batch_size, total, per_epoch)
    bad = np.flatnonzero(~(np.isfinite(result) & (result > 0)))
    if bad.size:
        message = f"the learning rate of step {bad[0]} is {result[bad[0]]:g}; it must be greater than 0"
        raise _refused(spec, ("training", "schedule"), message)
    return result


def train_spec(
    spec: JobSpec,
    model: Model,
    train: data_pb2.Dataset,
    test: data_pb2.Dataset | None,
    learning_rates_digest: str,
    initial_weights_digest: str,
    engine: str,
) -> run_pb2.TrainSpec:
    """What one engine (as written in ``engines``) is asked to train."""
    return run_pb2.TrainSpec(
        model=model_message(model),
        train=train,
        test=test,
        training=_training(spec, learning_rates_digest),
        execution=execution(spec, engine),
        initial_weights_digest=initial_weights_digest,
    )


def evaluate_spec(
    spec: JobSpec, model: Model, test: data_pb2.Dataset, weights_digests: list[str], engine: str
) -> run_pb2.EvaluateSpec:
    """What one engine (as written in ``engines``) is asked to evaluate."""
    return run_pb2.EvaluateSpec(
        model=model_message(model),
        test=test,
        weights_digests=weights_digests,
        execution=execution(spec, engine),
    )


def execution(spec: JobSpec, engine: str) -> training_pb2.Execution:
    """Settings of the execution for one engine (as written in ``engines``)."""
    settings = spec.execution
    message = training_pb2.Execution(
        semantics=training_pb2.SEMANTICS_NATIVE if spec.native else training_pb2.SEMANTICS_CANONICAL,
        mode=training_pb2.MODE_SPEED if spec.mode == "speed" else training_pb2.MODE_PARITY,
        precision=_PRECISIONS[settings.precision],
        device=training_pb2.Device(kind=_DEVICES[spec.devices.kind], index=spec.devices.index),
        intra_threads=settings.threads,
        inter_threads=settings.inter_threads,
        cpu_affinity=settings.cpu_affinity,
        prefetch=settings.prefetch,
        deterministic=spec.deterministic,
        compiler=spec.compiler_of(engine),
        gpu_memory_growth=settings.gpu_memory_growth,
        allow_tf32=settings.allow_tf32,
        checkpoint_every_steps=settings.checkpoint_every_steps,
        accumulation_steps=settings.accumulation_steps if settings.accumulation_steps > 1 else 0,
    )
    parallel = spec.parallel_of(engine)
    if parallel.ranks > 1:
        message.parallel.CopyFrom(_parallel(parallel))
    return message


def _parallel(parallel: ParallelSpec) -> training_pb2.Parallel:
    """``backend`` stays empty for "auto": it is chosen by what the engine declares (jobs/placement.py)."""
    return training_pb2.Parallel(
        data=parallel.data,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        backend="" if parallel.backend == "auto" else parallel.backend,
        micro_batches=parallel.micro_batches,
        bucket_mib=parallel.bucket_mib,
        local_batch_norm=parallel.local_batch_norm,
        on_rank_loss=_RANK_LOSS[parallel.on_rank_loss],
        min_data=parallel.min_data,
        stall_seconds=parallel.stall_seconds,
    )


def _training(spec: JobSpec, learning_rates_digest: str) -> training_pb2.Training:
    training = spec.training
    optimizer = _optimizer(spec)
    rule = optimizer.rule
    message = training_pb2.Training(
        epochs=training.epochs,
        max_steps=training.max_steps,
        batch_size=training.batch_size,
        drop_last=training.drop_last,
        keep_order=training.keep_order,
        seed=training.seed,
        clip_norm=training.clip_norm,
        learning_rates_digest=learning_rates_digest,
    )
    target = getattr(message.optimizer, rule.api_name)
    target.SetInParent()
    for name, value in rule.constants(spec.native).items():
        setattr(target, name, value)
    decay = message.weight_decay
    if isinstance(rule, AdamW):
        decay.rate = rule.weight_decay
        decay.coupling = training_pb2.WEIGHT_DECAY_COUPLING_DECOUPLED
    elif training.weight_decay is not None:
        decay.rate = training.weight_decay.rate
        decay.include_biases = training.weight_decay.include_biases
        decay.coupling = _COUPLINGS[training.weight_decay.coupling]
    stopping = training.early_stopping
    if stopping is not None:
        message.early_stopping.validation_share = stopping.validation_share
        message.early_stopping.patience = stopping.patience
        message.early_stopping.min_delta = stopping.min_delta
    return message


def _optimizer(spec: JobSpec) -> OptimizerSpec:
    if spec.training.optimizer is None:
        raise _refused(spec, ("training", "optimizer"), "is missing")
    return spec.training.optimizer


def _refused(spec: JobSpec, path: Path, message: str) -> SpecError:
    return SpecError([Violation(field_name(path), line_of(spec.lines, path), message)])
