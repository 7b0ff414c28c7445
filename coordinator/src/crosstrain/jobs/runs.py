"""Runs of a job, with the requests that start them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crosstrain.registry import Offer
from crosstrain.store import NewMember, NewRun, RunRow
from crosstrain_protos.v1 import coordinator_pb2, run_pb2, service_pb2, training_pb2

from .naming import run_id
from .requests import Request


@dataclass(frozen=True)
class Placed:
    """An engine that a job asks for, where it was found: ``variant`` is what the job adds to its name.

    ``members`` are the services that its training spans, ``offer`` is of the first; empty if there is one.
    """

    offer: Offer
    variant: str
    device_key: str
    members: tuple[NewMember, ...] = ()

    def run_id(self, job_id: str, part: str) -> str:
        """Id of one of its runs."""
        return run_id(job_id, self.offer.engine.name, self.offer.engine.version, self.variant, part)


def train_run(job_id: str, placed: Placed, repeat: int, spec: run_pb2.TrainSpec) -> NewRun:
    """A training run."""
    name = placed.run_id(job_id, str(repeat))
    request = service_pb2.TrainRequest(run_id=name, engine=placed.offer.engine.name, spec=spec)
    return _run(run_pb2.RUN_KIND_TRAIN, coordinator_pb2.RUN_PURPOSE_TRAIN, repeat, placed, request)


def evaluate_run(job_id: str, placed: Placed, spec: run_pb2.EvaluateSpec) -> NewRun:
    """An evaluation run."""
    name = placed.run_id(job_id, "evaluate")
    request = service_pb2.EvaluateRequest(run_id=name, engine=placed.offer.engine.name, spec=spec)
    return _run(run_pb2.RUN_KIND_EVALUATE, coordinator_pb2.RUN_PURPOSE_EVALUATE, 0, placed, request)


def probe_run(job_id: str, placed: Placed, spec: run_pb2.ProbeSpec) -> NewRun:
    """A run whose records are checked."""
    name = placed.run_id(job_id, "probe")
    request = service_pb2.ProbeRequest(run_id=name, engine=placed.offer.engine.name, spec=spec)
    return _run(run_pb2.RUN_KIND_PROBE, coordinator_pb2.RUN_PURPOSE_PROBE, 0, placed, request)


def envelope_runs(trained: RunRow, request: service_pb2.TrainRequest, weights: Sequence[str]) -> list[NewRun]:
    """The same training once from each of some initial parameters, without evaluation."""
    found = []
    for index, digest in enumerate(weights):
        moved = service_pb2.TrainRequest()
        moved.CopyFrom(request)
        moved.run_id = _id_like(trained, f"envelope-{index}")
        moved.spec.initial_weights_digest = digest
        moved.spec.ClearField("test")
        purpose = coordinator_pb2.RUN_PURPOSE_ENVELOPE
        found.append(_like(trained, run_pb2.RUN_KIND_TRAIN, purpose, index, moved))
    return found


def seed_runs(trained: RunRow, request: service_pb2.TrainRequest, weights: Mapping[int, str]) -> list[NewRun]:
    """The same training once with each of some seeds, from the initial parameters given for it."""
    found = []
    for number, (seed, digest) in enumerate(weights.items(), 1):
        other = service_pb2.TrainRequest()
        other.CopyFrom(request)
        other.run_id = _id_like(trained, f"seed-{seed}")
        other.spec.training.seed = seed
        other.spec.initial_weights_digest = digest
        found.append(_like(trained, run_pb2.RUN_KIND_TRAIN, coordinator_pb2.RUN_PURPOSE_SEED, number, other))
    return found


#: What deciding needs: the values that the network computes from, and those that it computes.
FLIP_GROUPS = ("input", "parameter", "output", "mask", "loss")


def flip_run(trained: RunRow, request: service_pb2.TrainRequest, steps: Sequence[int]) -> NewRun:
    """The first steps of the same training, a few of which are recorded."""
    spec = request.spec
    case = run_pb2.ProbeCase(
        case_id="flip", model=spec.model, train=spec.train, training=spec.training,
        initial_weights_digest=spec.initial_weights_digest, steps=steps, groups=FLIP_GROUPS,
    )  # fmt: skip
    case.training.max_steps = max(steps) + 1
    name = _id_like(trained, "flip")
    probe = service_pb2.ProbeRequest(
        run_id=name, engine=trained.engine, spec=run_pb2.ProbeSpec(cases=[case], execution=spec.execution)
    )
    return _like(trained, run_pb2.RUN_KIND_PROBE, coordinator_pb2.RUN_PURPOSE_FLIP, 0, probe)


def _id_like(trained: RunRow, part: str) -> str:
    return run_id(trained.job_id, trained.engine, trained.engine_version, trained.variant, part)


def _like(
    trained: RunRow,
    kind: run_pb2.RunKind.ValueType,
    purpose: coordinator_pb2.RunPurpose.ValueType,
    repeat: int,
    request: Request,
) -> NewRun:
    """A run on the device of another one."""
    return NewRun(
        run_id=request.run_id,
        kind=kind,
        repeat=repeat,
        service=trained.service,
        engine=trained.engine,
        engine_version=trained.engine_version,
        device_key=trained.device_key,
        request=request.SerializeToString(deterministic=True),
        purpose=purpose,
        variant=trained.variant,
        parallel=parallel_of(request),
        members=trained.members,
    )


def _run(
    kind: run_pb2.RunKind.ValueType,
    purpose: coordinator_pb2.RunPurpose.ValueType,
    repeat: int,
    placed: Placed,
    request: Request,
) -> NewRun:
    offer = placed.offer
    return NewRun(
        run_id=request.run_id,
        kind=kind,
        repeat=repeat,
        service=offer.service,
        engine=offer.engine.name,
        engine_version=offer.engine.version,
        device_key=placed.device_key,
        # The same bytes whenever it is sent again, so the service sees the same body.
        request=request.SerializeToString(deterministic=True),
        purpose=purpose,
        variant=placed.variant,
        parallel=parallel_of(request),
        members=() if kind == run_pb2.RUN_KIND_EVALUATE else placed.members,
    )


def parallel_of(request: Request) -> training_pb2.Parallel | None:
    """How a request spreads its work; None with one rank."""
    execution = request.spec.execution
    return execution.parallel if execution.HasField("parallel") else None
