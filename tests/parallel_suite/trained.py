"""One real training run: its losses, for the comparison of free runs."""

from __future__ import annotations

import numpy as np

from crosstrain.compare.freerun.traces import LossTrace
from crosstrain_protos.v1 import run_pb2, service_pb2
from crosstrain_service import convert
from crosstrain_service.training import Execution
from tests.conformance.cases.builder import Case
from tests.support import messages
from tests.support.service import Service

TRAIN_SECONDS = 600.0


def train(service: Service, engine: str, case: Case, execution: Execution, run_id: str) -> LossTrace:
    """Trains a case and gives the loss of every step. Raises :class:`RunFailed`."""
    spec = run_pb2.TrainSpec(
        model=convert.model_message(case.model),
        train=messages.dataset(service, *case.data[:2], case.model, case.data.divisor),
        training=messages.training(service, case.training),
        execution=messages.execution(execution),
        initial_weights_digest=service.upload_tensors(case.initial),
    )
    service.training.Train(service_pb2.TrainRequest(run_id=run_id, engine=engine, spec=spec), timeout=120)
    losses: dict[int, float] = {}
    for event in service.finish(run_id, TRAIN_SECONDS):
        if event.WhichOneof("event") == "steps":
            losses.update(enumerate(event.steps.loss, event.steps.first_step))
    steps = sorted(losses)
    return LossTrace(np.array(steps), np.array([losses[step] for step in steps]))
