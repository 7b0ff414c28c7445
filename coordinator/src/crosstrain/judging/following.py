"""Which further runs a job's verdict needs, by what its first runs recorded.

- The envelope: ``verdict.envelope`` training runs of the fastest engine whose checks all hold, from initial
  parameters moved by one unit in the last place (in mixed precision, of the half type). Fastest means the smallest
  median step time measured in this job.
- Decision flips: where an engine's losses depart from those of the reference engine (without one: of the first
  engine whose checks hold), both record the last steps before that again, to find the first decision that they take
  differently. Only a few engines, the earliest to depart first, and only as long as repeating the steps and keeping
  the records stays cheap.
- Other seeds: with ``verdict.seeds`` above 1 every engine trains with each of them, for the test whether final
  accuracies are equivalent. It compares the engines seed by seed, so all get the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crosstrain import spec as documents
from crosstrain.compare.freerun.perturbation import perturb
from crosstrain.compare.freerun.traces import difference
from crosstrain.compare.numerics.rounding import half_of
from crosstrain.labels import rank_count, run_label
from crosstrain.purposes import is_training
from crosstrain_protos.v1 import coordinator_pb2, run_pb2, service_pb2
from crosstrain_service import convert, weights
from crosstrain_service.errors import CrosstrainError

from . import stored
from .reading import Reader, Recorded

REFERENCE = "reference"
#: Engines whose departure is looked into.
MAX_FLIPS = 4
#: Steps recorded up to the one at which losses depart: a decision shows in the loss of a later step.
WINDOW = 4
#: Steps that the reference records for all those engines together.
MAX_REFERENCE_STEPS = 12
#: Time that repeating the steps may take in one engine, seconds.
MAX_SECONDS = 60.0
_SEED_DISTANCE = 1000
_SEED_END = 2**31
#: What the records of one engine may take, bytes.
MAX_BYTES = 512 << 20


@dataclass
class FurtherRuns:
    """``envelope_of`` is the run to repeat from each of ``weights``; ``flips`` maps runs to steps to record; the
    runs ``seeds_of`` are to be repeated with each of ``seeds``, which maps seeds to initial parameters.
    """

    envelope_of: str = ""
    weights: list[str] = field(default_factory=list)
    flips: dict[str, list[int]] = field(default_factory=dict)
    seeds_of: list[str] = field(default_factory=list)
    seeds: dict[int, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return vars(self)


@dataclass(frozen=True)
class Trained:
    """A training run of repeat 0 that succeeded; ``certified`` if all checks of its engine hold."""

    record: coordinator_pb2.JobRun
    recorded: Recorded
    certified: bool
    failed: bool

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self.record.run.run_id


def further_runs(reader: Reader, job_id: str) -> FurtherRuns:
    """The runs to add to a job whose training runs and probes have ended."""
    job = reader.job(job_id)
    spec = documents.parse_document(job.document)
    trained = [_trained(reader, job, record) for record in job.runs if _is_trained(record)]
    found = FurtherRuns()
    fastest = fastest_certified(trained)
    if spec.verdict.envelope and fastest is not None:
        initial = weights.from_bytes(reader.artifacts.get(job.initial_weights_digest, "initial weights"))[0]
        found.envelope_of = fastest.run_id
        half = half_of(spec.execution.precision or "")
        moved = (perturb(initial, seed, half) for seed in range(spec.verdict.envelope))
        found.weights = [reader.artifacts.put(weights.to_bytes(value)) for value in moved]
    # In half precision decisions fall otherwise from the first step on: one that does explains nothing.
    if spec.verdict.probe and not spec.native and not half_of(spec.execution.precision or ""):
        found.flips = flips(reader, trained)
    if spec.verdict.seeds > 1 and job.HasField("test") and trained:
        found.seeds_of = [item.run_id for item in trained]
        found.seeds = _initial_weights(reader, job, spec, trained[0].run_id)
    return found


def other_seeds(spec: documents.JobSpec) -> list[int]:
    """The seeds besides the job's own. A seed also gives its three successors to other draws, hence the distance."""
    return [(spec.training.seed + _SEED_DISTANCE * number) % _SEED_END for number in range(1, spec.verdict.seeds)]


def _initial_weights(
    reader: Reader, job: coordinator_pb2.Job, spec: documents.JobSpec, run_id: str
) -> dict[int, str]:
    """Digests of initial parameters by other seed: drawn for it, or those that the job was given for all.

    ``run_id`` is any training run of the job: all have the same network.
    """
    seeds = other_seeds(spec)
    if spec.initial_weights:
        return dict.fromkeys(seeds, job.initial_weights_digest)
    model = convert.model(service_pb2.TrainRequest.FromString(reader.row(run_id).request).spec.model)
    return {seed: reader.artifacts.put(weights.to_bytes(weights.initial_parameters(model, seed))) for seed in seeds}


def fastest_certified(trained: Sequence[Trained]) -> Trained | None:
    """The engine with the smallest median step time among those whose checks hold; None if there is none."""
    times = [(item.recorded.median_seconds, place) for place, item in enumerate(trained) if item.certified]
    known = [(seconds, place) for seconds, place in times if seconds is not None]
    return trained[min(known)[1]] if known else None


def base_of(trained: Sequence[Trained]) -> Trained | None:
    """The run that the others are compared with: that of the reference engine, else the first whose checks hold, on
    one rank rather than on several. None if there is none of these.
    """
    reference = [item for item in trained if item.record.run.engine == REFERENCE]
    certified = [item for item in trained if item.certified]
    alone = [item for item in certified if rank_count(item.record) == 1]
    return next(iter([*reference, *alone, *certified]), None)


def flips(reader: Reader, trained: Sequence[Trained]) -> dict[str, list[int]]:
    """Steps to record by run: windows before the departures, and in the run compared with all of these steps."""
    reference = base_of(trained)
    if reference is None:
        return {}
    departed = []
    for item in trained:
        if item is not reference and not item.failed:
            step = difference(reference.recorded.trace, item.recorded.trace).departed_step
            if step >= 0:
                departed.append((step, item))
    departed.sort(key=lambda pair: pair[0])
    found: dict[str, list[int]] = {}
    both: set[int] = set()
    for step, item in departed:
        if len(found) == MAX_FLIPS or not _quick(reference, step) or not _quick(item, step):
            continue
        count = min(WINDOW, step + 1, _affordable(reader, item))
        steps = list(range(step - count + 1, step + 1))
        if steps and len(both | set(steps)) <= min(MAX_REFERENCE_STEPS, _affordable(reader, reference)):
            found[item.run_id] = steps
            both |= set(steps)
    if found:
        found[reference.run_id] = sorted(both)
    return found


def _quick(item: Trained, step: int) -> bool:
    return (item.recorded.median_seconds or 0.0) * step <= MAX_SECONDS


def _affordable(reader: Reader, item: Trained) -> int:
    """How many steps fit into the room for records."""
    spec = service_pb2.TrainRequest.FromString(reader.row(item.run_id).request).spec
    model = convert.model(spec.model)
    values = sum(int(np.prod(shape)) for shape in model.output_shapes().values()) + int(np.prod(model.input_shape))
    parameters = sum(int(np.prod(shape)) for shape in model.parameter_shapes().values())
    size = 8 if item.recorded.facts.get("maths.precision") == "float64" else 4
    return MAX_BYTES // (size * (values * spec.training.batch_size + parameters))


def _is_trained(record: coordinator_pb2.JobRun) -> bool:
    return is_training(record) and record.run.state == run_pb2.RUN_STATE_SUCCEEDED and record.repeat == 0


def _trained(reader: Reader, job: coordinator_pb2.Job, record: coordinator_pb2.JobRun) -> Trained:
    certified = failed = False
    probe = probe_of(job, record)
    if probe is not None and probe.certificate_digest:
        try:
            data = reader.artifacts.get(probe.certificate_digest, "certificate")
            found = stored.from_bytes(data, "certificate")
            certified = found.holds
            failed = any(item.failed for item in found.certificates)
        except CrosstrainError:
            pass  # the verdict will say so
    return Trained(record, reader.recorded(record.run.run_id), certified, failed)


def probe_of(job: coordinator_pb2.Job, record: coordinator_pb2.JobRun) -> coordinator_pb2.JobRun | None:
    """The probe of a run's engine in the same job."""
    label = run_label(record)
    return next(
        (
            other
            for other in job.runs
            if other.purpose == coordinator_pb2.RUN_PURPOSE_PROBE
            and run_label(other) == label
        ),
        None,
    )
