"""Messages of the API from plain data."""

from __future__ import annotations

import dataclasses

import numpy as np

from crosstrain_protos.v1 import data_pb2, training_pb2
from crosstrain_service.model import Model
from crosstrain_service.training import Execution, Parallel, Training

from .service import Service

_PRECISION = {
    "": training_pb2.PRECISION_UNSPECIFIED,
    "float32": training_pb2.PRECISION_FLOAT32,
    "float64": training_pb2.PRECISION_FLOAT64,
    "mixed_float16": training_pb2.PRECISION_MIXED_FLOAT16,
    "mixed_bfloat16": training_pb2.PRECISION_MIXED_BFLOAT16,
}


def dataset(
    service: Service, pixels: np.ndarray, labels: np.ndarray, model: Model, divisor: float
) -> data_pb2.Dataset:
    """Uploads a data set and refers to it."""
    return data_pb2.Dataset(
        pixels_digest=service.upload_array(pixels),
        labels_digest=service.upload_array(np.asarray(labels, dtype="<i8")),
        samples=len(pixels),
        input_shape=model.input_shape,
        classes=model.classes,
        divisor=divisor,
    )


def training(service: Service, value: Training) -> training_pb2.Training:
    """Training settings, their learning rates uploaded."""
    message = training_pb2.Training(
        epochs=value.epochs,
        max_steps=value.max_steps,
        batch_size=value.batch_size,
        drop_last=value.drop_last,
        seed=value.seed,
        keep_order=value.keep_order,
        clip_norm=value.clip_norm,
        learning_rates_digest=service.upload_array(np.asarray(value.learning_rates, dtype="<f8")),
    )
    rule = getattr(message.optimizer, value.rule.name)
    rule.SetInParent()
    for field in rule.DESCRIPTOR.fields:
        constant = getattr(value.rule, field.name)
        if constant is not None:
            setattr(rule, field.name, constant)
    decay = value.weight_decay
    if decay is not None:
        message.weight_decay.rate = decay.rate
        message.weight_decay.include_biases = decay.include_biases
        message.weight_decay.coupling = (
            training_pb2.WEIGHT_DECAY_COUPLING_DECOUPLED
            if decay.decoupled
            else training_pb2.WEIGHT_DECAY_COUPLING_L2
        )
    return message


def parallel(value: Parallel) -> training_pb2.Parallel:
    """How training is spread."""
    lost = training_pb2.RankLoss.Value("RANK_LOSS_" + value.on_rank_loss.upper())
    return training_pb2.Parallel(**{**dataclasses.asdict(value), "on_rank_loss": lost})


def execution(value: Execution) -> training_pb2.Execution:
    """Settings of the execution; all but the device's index, affinity and prefetching."""
    native = value.semantics == "native"
    cuda = value.device == "cuda"
    return training_pb2.Execution(
        semantics=training_pb2.SEMANTICS_NATIVE if native else training_pb2.SEMANTICS_CANONICAL,
        mode=training_pb2.MODE_SPEED if value.mode == "speed" else training_pb2.MODE_PARITY,
        precision=_PRECISION[value.precision],
        device=training_pb2.Device(
            kind=training_pb2.DEVICE_KIND_CUDA if cuda else training_pb2.DEVICE_KIND_CPU,
            index=value.device_index,
        ),
        intra_threads=value.intra_threads,
        inter_threads=value.inter_threads,
        deterministic=value.deterministic,
        compiler=value.compiler,
        accumulation_steps=value.accumulation_steps,
        parallel=parallel(value.parallel),
    )
