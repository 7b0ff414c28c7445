"""Compares the recorded losses and fingerprints of two runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from crosstrain.store import Store
from crosstrain_protos.v1 import coordinator_pb2, run_pb2
from crosstrain_service.errors import CrosstrainError

#: Relative difference of two losses beyond which the curves are no longer together.
HORIZON = 1e-3


@dataclass
class Recorded:
    """The loss of every step of a run, by step number, and its facts."""

    losses: dict[int, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


def compare_runs(store: Store, run_id_a: str, run_id_b: str) -> coordinator_pb2.CompareRunsResponse:
    """The differences of two training runs that have ended well.

    Raises:
        CrosstrainError: ``RUN_NOT_FOUND``, or ``WRONG_STATE`` naming the run that is not finished.
    """
    return compare(_finished(store, run_id_a, "run_id_a"), _finished(store, run_id_b, "run_id_b"))


def compare(a: Recorded, b: Recorded) -> coordinator_pb2.CompareRunsResponse:
    """The differences of two records; a loss that is not finite differs infinitely from all but its equal."""
    steps = np.array(sorted(a.losses.keys() & b.losses.keys()), dtype=np.int64)
    left = np.array([a.losses[step] for step in steps], dtype=np.float64)
    right = np.array([b.losses[step] for step in steps], dtype=np.float64)
    equal = left.view(np.uint64) == right.view(np.uint64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(left - right)
        difference[np.isnan(difference)] = np.inf
        difference[equal] = 0.0
        beyond = (difference > HORIZON * np.maximum(np.abs(left), np.abs(right))) | np.isinf(difference)
    largest = int(difference.argmax()) if len(steps) else -1
    return coordinator_pb2.CompareRunsResponse(
        steps_compared=len(steps),
        losses_equal=bool(equal.all()),
        first_different_step=_first(steps, ~equal),
        max_abs_difference=float(difference[largest]) if len(steps) else 0.0,
        max_difference_step=int(steps[largest]) if len(steps) else -1,
        horizon_step=_first(steps, beyond),
        fact_differences=[
            coordinator_pb2.FactDifference(name=name, value_a=a.facts.get(name, ""), value_b=b.facts.get(name, ""))
            for name in sorted(a.facts.keys() | b.facts.keys())
            if a.facts.get(name) != b.facts.get(name)
        ],
    )


def recorded(events: Iterator[run_pb2.RunEvent]) -> Recorded:
    """What a run's events record; a later attempt replaces the steps that it executes again."""
    found = Recorded()
    for event in events:
        kind = event.WhichOneof("event")
        if kind == "attempt_started":
            resume = event.attempt_started.resume_step
            found.losses = {step: loss for step, loss in found.losses.items() if step < resume}
        elif kind == "steps":
            first = event.steps.first_step
            found.losses.update(enumerate(event.steps.loss, first))
        elif kind == "fingerprint":
            found.facts.update(event.fingerprint.facts)
    return found


def _finished(store: Store, run_id: str, name: str) -> Recorded:
    row = store.jobs.run(run_id)
    if row.kind != run_pb2.RUN_KIND_TRAIN or row.state != run_pb2.RUN_STATE_SUCCEEDED:
        message = f"{name}: run {run_id} is not a training run that has succeeded"
        raise CrosstrainError("WRONG_STATE", message, name)
    return recorded(_events(store, run_id))


def _events(store: Store, run_id: str) -> Iterator[run_pb2.RunEvent]:
    after = 0
    while events := store.jobs.run_events(run_id, after):
        yield from events
        after = events[-1].sequence


def _first(steps: NDArray[np.int64], where: NDArray[np.bool_]) -> int:
    return int(steps[where.argmax()]) if where.any() else -1
