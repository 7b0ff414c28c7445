"""All evidence about a job from what is stored.

What is missing or damaged is named and left out: it says nothing about an engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from crosstrain import spec as documents
from crosstrain.compare.freerun.traces import LossTrace
from crosstrain.compare.verdict import EngineEvidence, EnvelopeEvidence, Evidence, Failure
from crosstrain.labels import rank_count, run_label
from crosstrain.purposes import is_training
from crosstrain_protos.v1 import coordinator_pb2, run_pb2, service_pb2
from crosstrain_service.errors import CrosstrainError

from . import stored
from .flips import first_flip_of, flip_in_document
from .following import REFERENCE, probe_of
from .reading import Reader
from .stored import StoredCertificate

_SUCCEEDED = run_pb2.RUN_STATE_SUCCEEDED


@dataclass
class Gathering:
    """Collects evidence; ``failures`` grows by what could not be read."""

    reader: Reader
    job: coordinator_pb2.Job
    failures: list[Failure] = field(default_factory=list)

    def engines(self) -> list[EngineEvidence]:
        """One entry per engine of the job and way of spreading it, in the order of its runs."""
        groups: dict[str, list[coordinator_pb2.JobRun]] = {}
        for record in self.job.runs:
            groups.setdefault(run_label(record), []).append(record)
        engines = [self._engine(records) for records in groups.values()]
        base = base_of(engines)
        return engines if base is None else [self._with_flip(engine, base) for engine in engines]

    def envelope(self, engines: Sequence[EngineEvidence]) -> EnvelopeEvidence | None:
        """The perturbed runs with the run that they are perturbed from; None without any."""
        runs = [record for record in self.job.runs if record.purpose == coordinator_pb2.RUN_PURPOSE_ENVELOPE]
        done = [record for record in runs if record.run.state == _SUCCEEDED]
        self.failures += [self._failed(record, "envelope run") for record in runs if record not in done]
        if not done:
            return None
        label = run_label(done[0])
        base = next((engine for engine in engines if engine.label == label and engine.trace is not None), None)
        if base is None or base.trace is None:
            return None
        traces = tuple(self.reader.recorded(record.run.run_id).trace for record in done)
        return EnvelopeEvidence(label, base.trace, traces, base.repeats)

    def one(self, record: coordinator_pb2.JobRun, label: str) -> EngineEvidence:
        """The evidence of a single run, with that of its engine's probe in the same job."""
        probe = record if record.run.kind == run_pb2.RUN_KIND_PROBE else probe_of(self.job, record)
        trained = [record] if record.run.kind == run_pb2.RUN_KIND_TRAIN else []
        found = self._evidence(record, probe, trained, label)
        if not trained:
            return found
        try:
            return dataclasses.replace(found, flip=flip_in_document(self.reader, self.job, run_label(record)))
        except CrosstrainError as error:
            self.failures.append(Failure(f"{label}, decision flips", error.message))
            return found

    def _engine(self, records: Sequence[coordinator_pb2.JobRun]) -> EngineEvidence:
        trained = [record for record in records if is_training(record)]
        probe = probe_of(self.job, records[0])
        done = [record for record in trained if record.run.state == _SUCCEEDED]
        self.failures += [self._failed(record, "training") for record in trained if record not in done]
        return self._evidence(records[0], probe, done, run_label(records[0]))

    def _with_flip(self, engine: EngineEvidence, base: EngineEvidence) -> EngineEvidence:
        """With the first decision that an engine took differently than the base, if both recorded the step."""
        if engine is base or engine.trace is None:
            return engine
        try:
            return dataclasses.replace(engine, flip=first_flip_of(self.reader, self.job, engine.label, base.label))
        except CrosstrainError as error:
            self.failures.append(Failure(f"{engine.label}, decision flips", error.message))
            return engine

    def _evidence(
        self,
        first: coordinator_pb2.JobRun,
        probe: coordinator_pb2.JobRun | None,
        trained: Sequence[coordinator_pb2.JobRun],
        label: str,
    ) -> EngineEvidence:
        certificate, reason = self._certificate(probe)
        tensors = dict(certificate.tensors) if certificate else {}
        traces: list[LossTrace] = []
        facts: dict[str, str] = {}
        accuracy: float | None = None
        skipped = 0
        for place, record in enumerate(trained):
            recorded = self.reader.recorded(record.run.run_id)
            traces.append(recorded.trace)
            if place == 0:
                facts = recorded.facts
                tensors["weights"] = record.result.weights_digest
                skipped = record.result.skipped_updates
                if record.result.HasField("test_accuracy"):
                    accuracy = record.result.test_accuracy
        if not trained and probe is not None:
            facts = self.reader.recorded(probe.run.run_id).facts
        spec = documents.parse_document(self.job.document)
        return EngineEvidence(
            engine=first.run.engine,
            version=first.run.engine_version,
            label=label,
            run_id=trained[0].run.run_id if trained else "",
            probe_run_id=probe.run.run_id if probe is not None else "",
            certificates=certificate.certificates if certificate else (),
            reason=reason,
            causes=certificate.causes if certificate else (),
            trace=traces[0] if traces else None,
            repeats=tuple(traces[1:]),
            tensors=tensors,
            facts=facts,
            asked=asked(self.job, spec),
            test_accuracy=accuracy,
            accuracies=self._accuracies(first, spec.training.seed, accuracy),
            ranks=rank_count(first),
            skipped=skipped,
        )

    def _accuracies(self, first: coordinator_pb2.JobRun, seed: int, accuracy: float | None) -> dict[int, float]:
        """Final test accuracies of an engine by seed; a run with another seed that failed is named."""
        found = {} if accuracy is None else {seed: accuracy}
        for record in self.job.runs:
            if record.purpose != coordinator_pb2.RUN_PURPOSE_SEED or run_label(record) != run_label(first):
                continue
            if record.run.state != _SUCCEEDED:
                self.failures.append(self._failed(record, "run with another seed"))
            elif record.result.HasField("test_accuracy"):
                request = service_pb2.TrainRequest.FromString(self.reader.row(record.run.run_id).request)
                found[request.spec.training.seed] = record.result.test_accuracy
        return found

    def _certificate(self, probe: coordinator_pb2.JobRun | None) -> tuple[StoredCertificate | None, str]:
        if probe is None:
            return None, "it was not probed: the job asked for no probes, or the engine records none"
        name = f"the probe of {run_label(probe)}"
        if probe.HasField("certificate_error") or not probe.certificate_digest:
            reason = probe.certificate_error.message or "it has not been checked"
            self.failures.append(Failure(name, reason))
            return None, reason
        try:
            data = self.reader.artifacts.get(probe.certificate_digest, "certificate")
            found = stored.from_bytes(data, "certificate")
        except CrosstrainError as error:
            self.failures.append(Failure(name, error.message))
            return None, error.message
        self.failures += found.failures
        reason = "; ".join(failure.reason for failure in found.failures)
        return found, "" if found.certificates else reason

    def _failed(self, record: coordinator_pb2.JobRun, what: str) -> Failure:
        reason = record.run.error.message or "it was cancelled"
        return Failure(f"{what} of {run_label(record)}", reason)


def job_evidence(reader: Reader, job_id: str) -> Evidence:
    """Everything that is known about a job whose runs have ended."""
    job = reader.job(job_id)
    spec = documents.parse_document(job.document)
    gathering = Gathering(reader, job)
    engines = gathering.engines()
    base = base_of(engines)
    return Evidence(
        job_id=job.job_id,
        job_name=job.name,
        model=model_name(spec),
        created=now(),
        semantics=spec.semantics,
        precision=spec.execution.precision or "float32",
        task="check" if spec.task == "check" else "train",
        engines=tuple(engines),
        reference=base.label if base is not None else "",
        envelope=gathering.envelope(engines),
        could_not_compare=tuple(dict.fromkeys(gathering.failures)),
        accuracy_margin=spec.verdict.margin,
    )


def base_of(engines: Sequence[EngineEvidence]) -> EngineEvidence | None:
    """The engine whose training run the others are compared with: the reference engine if it was trained, else
    the first one whose checks hold (on one rank rather than on several), else the first one.
    """
    trained = [engine for engine in engines if engine.trace is not None]
    certified = [engine for engine in trained if engine.possible and not engine.failed]
    reference = [engine for engine in trained if engine.engine == REFERENCE]
    alone = [engine for engine in certified if engine.ranks == 1]
    return next(iter([*reference, *alone, *certified, *trained]), None)


def asked(job: coordinator_pb2.Job, spec: documents.JobSpec) -> dict[str, str]:
    """What a job asks for as far as it defines the function: equal for runs that can be compared."""
    training = spec.training
    return {
        "network": model_name(spec) if isinstance(spec.model, str) else spec.model.model_dump_json(),
        "training pixels": job.train.pixels_digest,
        "training labels": job.train.labels_digest,
        "divisor": repr(job.train.divisor),
        "initial weights": job.initial_weights_digest,
        "learning rates": job.learning_rates_digest,
        "training": documents.resolved(spec).training.model_dump_json(exclude={"epochs", "max_steps", "schedule"})
        if not spec.native
        else training.model_dump_json(exclude={"epochs", "max_steps", "schedule"}),
    }


def model_name(spec: documents.JobSpec) -> str:
    """Name of the network."""
    return spec.model if isinstance(spec.model, str) else spec.model.name


def now() -> str:
    """The present time, RFC 3339 in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
