"""Which device of a service a run uses, and whether its engine can do what the run needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosstrain.registry import Offer
from crosstrain.spec import BACKENDS
from crosstrain_protos.v1 import run_pb2, training_pb2
from crosstrain_service import capabilities, convert
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import Model
from crosstrain_service.servicer import features_of
from crosstrain_service.training import Execution

_KINDS = {training_pb2.DEVICE_KIND_CPU: "cpu", training_pb2.DEVICE_KIND_CUDA: "cuda"}


def choose_device(execution: training_pb2.Execution, offer: Offer, field: str) -> tuple[str, int]:
    """Kind ("cpu" or "cuda") and index of the device; written into ``execution`` where it was left open.

    Left open means a GPU where the service has one and the engine can use it, else the CPU.

    Raises:
        CrosstrainError: ``UNSUPPORTED`` if the service has no such device.
    """
    names = [device.name for device in offer.devices]
    device = execution.device
    if device.kind == training_pb2.DEVICE_KIND_UNSPECIFIED:
        wanted = f"cuda:{device.index}"
        usable = _supports(offer, "device.cuda")
        if usable and wanted in names:
            device.kind = training_pb2.DEVICE_KIND_CUDA
        else:
            device.kind = training_pb2.DEVICE_KIND_CPU
            device.index = 0
    kind = _KINDS[device.kind]
    if f"{kind}:{device.index}" not in names:
        message = (
            f"{field}: the service {offer.service} of {offer.label} has no device {kind}:{device.index}, "
            f"only {', '.join(names) or 'none'}"
        )
        raise CrosstrainError("UNSUPPORTED", message, field)
    return kind, device.index


def rank_devices(execution: training_pb2.Execution, offer: Offer, field: str) -> int:
    """Devices that the ranks of one service use: a GPU each, or all the same CPU.

    Raises:
        CrosstrainError: ``UNSUPPORTED`` if there are not as many.
    """
    if execution.device.kind != training_pb2.DEVICE_KIND_CUDA or not execution.HasField("parallel"):
        return 1
    count, first = _execution(execution).parallel.ranks, execution.device.index
    names = {device.name for device in offer.devices}
    missing = [f"cuda:{number}" for number in range(first, first + count) if f"cuda:{number}" not in names]
    if missing:
        message = (
            f"{field}: {count} ranks of {offer.label} need as many GPUs, but the service {offer.service} has no "
            f"{missing[0]}; fewer ranks, or devices: {{kind: cpu}}"
        )
        raise CrosstrainError("UNSUPPORTED", message, field)
    return count


def choose_backend(execution: training_pb2.Execution, offer: Offer, field: str) -> None:
    """Writes the backend of several ranks into ``execution`` where the job left it open.

    It is the first of :data:`crosstrain.spec.BACKENDS` that the engine declares.

    Raises:
        CrosstrainError: ``UNSUPPORTED`` if it declares none, naming why it lacks each.
    """
    if not execution.HasField("parallel") or execution.parallel.backend:
        return
    found = next((name for name in BACKENDS if _supports(offer, f"parallel.{name}")), None)
    if found is None:
        needed = {name for name in capabilities.features_of_execution(_execution(execution)) if "parallel." in name}
        _require(offer, execution, needed | {f"parallel.{name}" for name in BACKENDS}, field)
    execution.parallel.backend = found or ""


def check_training(
    offer: Offer, spec: run_pb2.TrainSpec, model: Model, rates: NDArray[np.float64], field: str
) -> None:
    """Raises ``UNSUPPORTED`` naming the engine and what it lacks, or ``INVALID_FIELD`` for a bad setting."""
    execution = _execution(spec.execution)
    training = convert.training(spec.training, rates, execution.native)
    needed = (
        capabilities.features_of_model(model)
        | capabilities.features_of_training(training)
        | capabilities.features_of_execution(execution)
    )
    _require(offer, spec.execution, needed, field)


def records_probes(offer: Offer) -> bool:
    """Whether the engine can record the values inside a step."""
    return _supports(offer, "probe")


def check_evaluation(offer: Offer, execution: training_pb2.Execution, model: Model, field: str) -> None:
    """The same for an evaluation."""
    needed = capabilities.features_of_model(model) | capabilities.features_of_execution(_execution(execution))
    _require(offer, execution, needed, field)


def _execution(message: training_pb2.Execution) -> Execution:
    """Checked settings; which cores exist is known to the service alone."""
    here = training_pb2.Execution()
    here.CopyFrom(message)
    del here.cpu_affinity[:]
    return convert.execution(here)


def _require(offer: Offer, execution: training_pb2.Execution, needed: set[str], field: str) -> None:
    if execution.cpu_affinity:
        needed = needed | {"execution.cpu_affinity"}
    try:
        capabilities.require(offer.label, _features(offer), needed)
    except CrosstrainError as error:
        raise CrosstrainError(error.reason, error.message, field) from error


def _features(offer: Offer) -> dict[str, Any]:
    return dict(features_of(offer.engine))


def _supports(offer: Offer, feature: str) -> bool:
    found = _features(offer).get(feature)
    return found is not None and found.support != capabilities.UNSUPPORTED
