"""What a job in native semantics is compared with: the same job with the constants of canonical semantics.

Where a job leaves a constant to the framework, the difference between the framework's default and the canonical
constant is one of the things that the comparison is to find.
"""

from __future__ import annotations

import dataclasses

from crosstrain.spec.optimizers import AdaDelta, Adagrad, Adam, RmsProp, Sgd
from crosstrain_protos.v1 import training_pb2
from crosstrain_service.model import BatchNorm, Model

_CANONICAL = {rule.api_name: rule.canonical for rule in (Sgd, RmsProp, Adagrad, Adam, AdaDelta)}
#: Canonical semantics has no default: a job must give it. PyTorch's and Caffe's is the most common.
EPSILON = 1e-5


def with_canonical_constants(training: training_pb2.Training) -> training_pb2.Training:
    """The same settings with every constant of the update rule that was left open."""
    filled = training_pb2.Training()
    filled.CopyFrom(training)
    name = filled.optimizer.WhichOneof("rule")
    if name is not None:
        rule = getattr(filled.optimizer, name)
        for constant, value in _CANONICAL[name].items():
            if not rule.HasField(constant):
                setattr(rule, constant, value)
    return filled


def with_canonical_layers(model: Model) -> Model:
    """The same network with the constants of batch norm layers that were left open."""
    layers = tuple(
        dataclasses.replace(layer, epsilon=EPSILON) if isinstance(layer, BatchNorm) and layer.epsilon is None else layer
        for layer in model.layers
    )
    return dataclasses.replace(model, layers=layers)
