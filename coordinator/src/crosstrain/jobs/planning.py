"""From a job document to runs: everything is checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from crosstrain import spec as documents
from crosstrain.artifacts import ArtifactStore
from crosstrain.registry import Offer, Registry, resolve
from crosstrain.store import NewJob, NewRun, VerdictStage
from crosstrain_protos.v1 import coordinator_pb2, data_pb2, run_pb2, training_pb2
from crosstrain_service import convert, weights
from crosstrain_service.errors import CrosstrainError, invalid_field
from crosstrain_service.model import Model

from .datasets import Datasets, JobData
from .groups import members_for
from .placement import check_evaluation, check_training, choose_backend, choose_device, rank_devices, records_probes
from .probes import ProbePlanner, npy
from .runs import Placed, evaluate_run, probe_run, train_run

MAX_DOCUMENT = 1 << 20
MAX_RUNS = 1000
MAX_REMARKS = 200
MAX_REMARK = 4000


@dataclass
class Planner:
    """Checks job requests and lays out their runs. Errors are :class:`CrosstrainError`."""

    artifacts: ArtifactStore
    registry: Registry
    datasets: Datasets

    def plan(self, job_id: str, request: coordinator_pb2.CreateJobRequest, body_digest: str) -> NewJob:
        """The job that a request asks for, ready to be stored.

        Raises:
            CrosstrainError: ``INVALID_JOB`` with lines and fields, ``INVALID_DATA``, ``INVALID_MODEL``,
                ``INVALID_WEIGHTS``, ``ENGINE_NOT_FOUND``, ``UNSUPPORTED`` and others of the catalogue.
        """
        if len(request.document.encode()) > MAX_DOCUMENT:
            raise CrosstrainError("LIMIT_EXCEEDED", f"the job document is over {MAX_DOCUMENT} bytes", "document")
        spec = documents.parse_document(request.document)
        offers = self._offers(spec)
        train, test, findings = self._data(spec, request)
        if spec.task == "evaluate":
            planned = self._evaluation(job_id, spec, offers, test or train, body_digest)
        else:
            planned = self._training(job_id, spec, offers, train, test, body_digest)
        planned.job.remarks.extend(request.remarks)
        planned.job.remarks.extend(
            run_pb2.LogLine(severity=finding.severity, text=finding.message) for finding in findings
        )
        return planned

    def _offers(self, spec: documents.JobSpec) -> list[Offer]:
        registered = self.registry.offers()
        return [
            resolve(registered, documents.parse_entry(wanted).base, f"engines[{index}]")
            for index, wanted in enumerate(spec.engines)
        ]

    def _placed(
        self, spec: documents.JobSpec, offers: list[Offer], index: int, execution: training_pb2.Execution
    ) -> Placed:
        """Where an entry of ``engines`` runs; what ``execution`` left open is written into it.

        Raises:
            CrosstrainError: ``INVALID_JOB`` if an earlier entry means the same, ``UNSUPPORTED``.
        """
        offer, wanted, field = offers[index], spec.engines[index], f"engines[{index}]"
        device = choose_device(execution, offer, field)
        choose_backend(execution, offer, field)
        for before, known in enumerate(offers[:index]):
            if known.label == offer.label and spec.same_ranks(spec.engines[before], wanted):
                message = f"{wanted!r} names {offer.label} a second time, spread over the same ranks"
                if not execution.HasField("parallel"):
                    message = f"{wanted!r} names {offer.label} a second time"
                raise CrosstrainError("INVALID_JOB", message, field)
        variant = documents.parse_entry(wanted).variant
        ranks = [] if spec.task == "evaluate" else spec.parallel_of(wanted).ranks_of_hosts()
        if len(ranks) < 2:
            count = rank_devices(execution, offer, field)
            return Placed(offer, variant, self.registry.device_key(offer, *device, count))
        group = members_for(self.registry, offer, ranks, device, field)
        return Placed(group[0][0], variant, group[0][1].device_key, tuple(member for _, member in group))

    def _data(self, spec: documents.JobSpec, request: coordinator_pb2.CreateJobRequest) -> JobData:
        _check_remarks(request)
        train = self.datasets.given(request.train, "train") if request.HasField("train") else None
        test = self.datasets.given(request.test, "test") if request.HasField("test") else None
        if train is None and test is None:
            return self.datasets.imported(spec.data)
        return JobData(train, test)

    def _training(
        self,
        job_id: str,
        spec: documents.JobSpec,
        offers: list[Offer],
        train: data_pb2.Dataset | None,
        test: data_pb2.Dataset | None,
        body_digest: str,
    ) -> NewJob:
        if train is None:
            raise CrosstrainError("INVALID_DATA", "there is no training data", "data.train")
        model = documents.build_model(spec, tuple(train.input_shape), train.classes)
        for name, dataset in (("data.train", train), ("data.test", test)):
            if dataset is not None:
                convert.dataset(dataset, model, name)
        rates = documents.learning_rates(spec, documents.training_rows(spec, train.samples)).astype("<f8")
        rates_digest = self.artifacts.put(npy(rates))
        weights_digest = self._initial_weights(spec, model)
        probes = ProbePlanner(self.artifacts, spec, model)
        runs: list[list[NewRun]] = []
        probed: list[NewRun] = []
        for index, offer in enumerate(offers):
            wanted = spec.engines[index]
            message = documents.train_spec(spec, model, train, test, rates_digest, weights_digest, wanted)
            placed = self._placed(spec, offers, index, message.execution)
            check_training(offer, message, model, rates, f"engines[{index}]")
            if spec.judged and spec.verdict.probe and records_probes(offer):
                probe = run_pb2.ProbeSpec(cases=probes.cases(message, rates), execution=message.execution)
                probed.append(probe_run(job_id, placed, probe))
            if spec.task == "train":
                runs.append([train_run(job_id, placed, repeat, message) for repeat in range(spec.repeats_of(wanted))])
        # Repeats go round the engines, so that a slow change of the machine meets all alike.
        ordered = probed + [of[repeat] for repeat in range(spec.repeats) for of in runs if repeat < len(of)]
        if len(ordered) > MAX_RUNS:
            raise CrosstrainError("LIMIT_EXCEEDED", f"the job has {len(ordered)} runs, at most {MAX_RUNS}", "repeats")
        if not ordered:
            raise CrosstrainError("UNSUPPORTED", "none of the engines records probes", "engines")
        job = self._job(job_id, spec, train, test)
        job.initial_weights_digest = weights_digest
        job.learning_rates_digest = rates_digest
        stage = VerdictStage.FOLLOW if spec.task == "train" else VerdictStage.JUDGE
        return NewJob(
            job,
            body_digest,
            ordered,
            shared_devices=bool(getattr(spec.devices, "shared", False)),
            evaluation_pending=bool(spec.task == "train" and spec.cross_evaluate and test is not None),
            verdict_stage=stage if spec.judged else VerdictStage.NONE,
        )

    def _evaluation(
        self,
        job_id: str,
        spec: documents.JobSpec,
        offers: list[Offer],
        test: data_pb2.Dataset | None,
        body_digest: str,
    ) -> NewJob:
        if test is None:
            raise CrosstrainError("INVALID_DATA", "there is no data to evaluate on", "data.test")
        model = documents.build_model(spec, tuple(test.input_shape), test.classes)
        convert.dataset(test, model, "data.test")
        for index, digest in enumerate(spec.weights):
            self._check_weights(digest, model, f"weights[{index}]")
        runs = []
        for index, offer in enumerate(offers):
            message = documents.evaluate_spec(spec, model, test, spec.weights, spec.engines[index])
            placed = self._placed(spec, offers, index, message.execution)
            check_evaluation(offer, message.execution, model, f"engines[{index}]")
            runs.append(evaluate_run(job_id, placed, message))
        shared = bool(getattr(spec.devices, "shared", False))
        return NewJob(self._job(job_id, spec, None, test), body_digest, runs, shared_devices=shared)

    def _job(
        self,
        job_id: str,
        spec: documents.JobSpec,
        train: data_pb2.Dataset | None,
        test: data_pb2.Dataset | None,
    ) -> coordinator_pb2.Job:
        return coordinator_pb2.Job(
            job_id=job_id, name=spec.name, document=documents.dump_document(spec), train=train, test=test
        )

    def _initial_weights(self, spec: documents.JobSpec, model: Model) -> str:
        if spec.initial_weights:
            self._check_weights(spec.initial_weights, model, "initial_weights")
            return str(spec.initial_weights)
        return self.artifacts.put(weights.to_bytes(weights.initial_parameters(model, spec.training.seed)))

    def _check_weights(self, digest: str, model: Model, field: str) -> None:
        convert.check_digest(digest, field)
        try:
            weights.check_weights(weights.from_bytes(self.artifacts.get(digest, field))[0], model)
        except CrosstrainError as error:
            if error.reason != "INVALID_WEIGHTS":
                raise
            raise CrosstrainError(error.reason, f"{field}: {error.message}", field) from error


def _check_remarks(request: coordinator_pb2.CreateJobRequest) -> None:
    if len(request.remarks) > MAX_REMARKS:
        raise CrosstrainError("LIMIT_EXCEEDED", f"there are more than {MAX_REMARKS} remarks", "remarks")
    for index, remark in enumerate(request.remarks):
        field = f"remarks[{index}]"
        if remark.severity not in ("info", "warning"):
            raise invalid_field(f"{field}.severity", f"{remark.severity[:40]!r} is neither info nor warning")
        if len(remark.text) > MAX_REMARK or not remark.text.isprintable():
            raise invalid_field(f"{field}.text", f"is not one printable line of at most {MAX_REMARK} characters")
