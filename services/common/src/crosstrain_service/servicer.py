"""The gRPC services of a training service: validation at the boundary, nothing else."""

import functools
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import grpc

from crosstrain_protos.v1 import artifact_pb2, artifact_pb2_grpc, run_pb2, service_pb2, service_pb2_grpc, training_pb2

from . import __version__, capabilities, convert, weights
from .artifacts import ArtifactStore
from .capabilities import Feature
from .errors import CrosstrainError, invalid_field
from .events import ENDED
from .model import Model
from .pauses import Pauses
from .probe import GROUPS, recorded_digests
from .run_record import RunRecord
from .rundir import StoredRequest
from .runs import RunManager
from .spool import SpoolReader
from .status import abort
from .training import Execution, Training

MAX_CASES = 500
#: A watcher looks for new events this often while the run waits for its device, seconds.
_WATCH_QUEUED_SECONDS = 0.1
#: Streams of WatchRun open at the same time.
MAX_WATCHERS = 160
#: Bytes of events in one message of a watched stream.
_WATCH_BYTES = 1 << 20

_SUPPORT = {
    service_pb2.SUPPORT_EXACT: capabilities.EXACT,
    service_pb2.SUPPORT_EMULATED: capabilities.EMULATED,
    service_pb2.SUPPORT_UNSUPPORTED: capabilities.UNSUPPORTED,
    service_pb2.SUPPORT_UNSPECIFIED: capabilities.UNSUPPORTED,
}


#: Engine, model, training, execution: why the engine cannot do this although it can do its parts; or "".
Refusal = Callable[[str, Model, Training, Execution], str]


def features_of(description: service_pb2.EngineDescription) -> Dict[str, Feature]:
    """The feature table of a described engine."""
    return {item.name: Feature(_SUPPORT[item.support], item.note) for item in description.features}


def _uses_gpu(engine: service_pb2.EngineDescription) -> bool:
    feature = features_of(engine).get("device.cuda")
    return feature is not None and feature.support != capabilities.UNSUPPORTED


def _ranks_here(request: Any) -> int:
    """Ranks of this service in a group; 0 without one."""
    group = request.group
    return group.ranks[group.member] if 0 <= group.member < len(group.ranks) else 0


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Turns every exception of a unary method into a status from the catalogue."""
    @functools.wraps(method)
    def call(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except Exception as error:  # the boundary: no stack trace leaves the service
            return abort(context, error)
    return call


def guarded_stream(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a method that streams its response, errors raised in mid-stream included."""
    @functools.wraps(method)
    def call(self: Any, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from method(self, request, context)
        except Exception as error:
            abort(context, error)
    return call


class TrainingServicer(service_pb2_grpc.TrainingServiceServicer):
    """``TrainingService`` over a run manager."""

    def __init__(self, service: str, engines: List[service_pb2.EngineDescription],
                 devices: List[service_pb2.DeviceDescription], runs: RunManager, artifacts: ArtifactStore,
                 refusal: Optional[Refusal] = None) -> None:
        """``refusal``: the package's own objections, see ``engine.Engine``."""
        self._refusal: Refusal = refusal or (lambda engine, model, training, execution: "")
        self._service = service
        self._engines = {item.name: item for item in engines}
        self._devices = devices
        self._runs = runs
        self._artifacts = artifacts
        self._checked: Set[Tuple[Any, ...]] = set()
        self._watchers = threading.BoundedSemaphore(MAX_WATCHERS)
        #: Streams of WatchRun that are open.
        self.watching = 0
        self._counting = threading.Lock()

    @guarded
    def Describe(self, request: Any, context: Any) -> service_pb2.DescribeResponse:
        return service_pb2.DescribeResponse(
            service=self._service, service_version=__version__, engines=list(self._engines.values()),
            devices=self._devices)

    @guarded
    def Train(self, request: service_pb2.TrainRequest, context: Any) -> service_pb2.TrainResponse:
        spec = request.spec
        engine = self._engine(request)
        model = convert.model(spec.model, "spec.model")
        convert.dataset(spec.train, model, "spec.train")
        if spec.HasField("test"):
            convert.dataset(spec.test, model, "spec.test")
        execution = self.execution(spec.execution, _uses_gpu(engine), _ranks_here(request))
        needed, training = self._needs_of_training(spec.training, execution, model, "spec.training")
        capabilities.require(engine.name, features_of(engine), needed)
        self._check_ranks(request, engine, model, training, execution, spec.train.samples, "spec")
        if spec.training.batch_size > spec.train.samples:
            raise invalid_field("spec.training.batch_size", "%d is larger than the %d training samples"
                                % (spec.training.batch_size, spec.train.samples))
        for name in ("train", "test"):
            data = getattr(spec, name)
            if spec.HasField(name):
                self._artifacts.require(data.pixels_digest, "spec.%s.pixels_digest" % name)
                self._artifacts.require(data.labels_digest, "spec.%s.labels_digest" % name)
        self._check_weights(spec.initial_weights_digest, model, "spec.initial_weights_digest")
        return service_pb2.TrainResponse(run=self._submit(run_pb2.RUN_KIND_TRAIN, request, engine, execution))

    @guarded
    def Evaluate(self, request: service_pb2.EvaluateRequest, context: Any) -> service_pb2.EvaluateResponse:
        spec = request.spec
        engine = self._engine(request)
        model = convert.model(spec.model, "spec.model")
        convert.dataset(spec.test, model, "spec.test")
        spec.execution.ClearField("parallel")  # saved weights are evaluated on one device
        execution = self.execution(spec.execution, _uses_gpu(engine))
        capabilities.require(engine.name, features_of(engine), capabilities.features_of_model(model)
                             | capabilities.features_of_execution(execution))
        if not 0 <= spec.batch_size <= convert.MAX_SIZE:
            raise invalid_field("spec.batch_size", "%d is not within 0 to %d" % (spec.batch_size, convert.MAX_SIZE))
        if not 1 <= len(spec.weights_digests) <= 1000:
            raise invalid_field("spec.weights_digests", "%d weights; 1 to 1000 are possible"
                                % len(spec.weights_digests))
        self._artifacts.require(spec.test.pixels_digest, "spec.test.pixels_digest")
        self._artifacts.require(spec.test.labels_digest, "spec.test.labels_digest")
        for index, digest in enumerate(spec.weights_digests):
            self._check_weights(digest, model, "spec.weights_digests[%d]" % index)
        return service_pb2.EvaluateResponse(run=self._submit(run_pb2.RUN_KIND_EVALUATE, request, engine, execution))

    @guarded
    def Probe(self, request: service_pb2.ProbeRequest, context: Any) -> service_pb2.ProbeResponse:
        spec = request.spec
        engine = self._engine(request)
        execution = self.execution(spec.execution, _uses_gpu(engine), _ranks_here(request))
        if not 1 <= len(spec.cases) <= MAX_CASES:
            raise invalid_field("spec.cases", "%d cases; 1 to %d are possible" % (len(spec.cases), MAX_CASES))
        names = set()
        needed = {"probe"}
        checks: List[Tuple[Model, Training, int, str]] = []
        for index, case in enumerate(spec.cases):
            field = "spec.cases[%d]" % index
            convert.check_name(case.case_id, field + ".case_id")
            if case.case_id in names:
                raise invalid_field(field + ".case_id", "%r is used twice" % case.case_id)
            names.add(case.case_id)
            for place, group in enumerate(case.groups):
                if group not in GROUPS:
                    raise invalid_field("%s.groups[%d]" % (field, place), "%r is none of %s"
                                        % (group[:80], ", ".join(GROUPS)))
            model = convert.model(case.model, field + ".model")
            convert.dataset(case.train, model, field + ".train")
            if case.HasField("test"):
                convert.dataset(case.test, model, field + ".test")
            for part in ("train", "test"):
                if case.HasField(part):
                    data = getattr(case, part)
                    self._artifacts.require(data.pixels_digest, "%s.%s.pixels_digest" % (field, part))
                    self._artifacts.require(data.labels_digest, "%s.%s.labels_digest" % (field, part))
            more, training = self._needs_of_training(case.training, execution, model, field + ".training")
            needed |= more
            checks.append((model, training, case.train.samples, field))
            self._check_weights(case.initial_weights_digest, model, field + ".initial_weights_digest")
        capabilities.require(engine.name, features_of(engine), needed)
        for model, training, samples, field in checks:
            self._check_ranks(request, engine, model, training, execution, samples, field)
        return service_pb2.ProbeResponse(run=self._submit(run_pb2.RUN_KIND_PROBE, request, engine, execution))

    @guarded
    def GetRun(self, request: service_pb2.GetRunRequest, context: Any) -> service_pb2.GetRunResponse:
        return service_pb2.GetRunResponse(run=self._runs.get(request.run_id).refresh())

    @guarded
    def ListRuns(self, request: service_pb2.ListRunsRequest, context: Any) -> service_pb2.ListRunsResponse:
        size = request.page_size or 100
        if not 1 <= size <= 1000:
            raise invalid_field("page_size", "%d is not within 1 to 1000" % size)
        records = self._runs.list()
        start = 0
        if request.page_token:
            positions = [index for index, record in enumerate(records) if record.run.run_id == request.page_token]
            if not positions:
                raise invalid_field("page_token", "%r is not from an earlier answer" % request.page_token[:140])
            start = positions[0]
        following = records[start + size:start + size + 1]
        return service_pb2.ListRunsResponse(
            runs=[record.refresh() for record in records[start:start + size]],
            next_page_token=following[0].run.run_id if following else "")

    @guarded_stream
    def WatchRun(self, request: service_pb2.WatchRunRequest, context: grpc.ServicerContext) -> Iterator[
            service_pb2.WatchRunResponse]:
        record = self._runs.get(request.run_id)
        if request.after_sequence < 0:
            raise invalid_field("after_sequence", "%d is negative" % request.after_sequence)
        if not self._watchers.acquire(blocking=False):
            raise CrosstrainError("LIMIT_EXCEEDED", "%d streams are open already; try again later" % MAX_WATCHERS)
        try:
            self._count(1)
            yield from self._events(record, request.after_sequence, context)
        finally:
            self._count(-1)
            self._watchers.release()

    def _count(self, change: int) -> None:
        with self._counting:
            self.watching += change

    def _events(self, record: RunRecord, after: int, context: grpc.ServicerContext) -> Iterator[
            service_pb2.WatchRunResponse]:
        reader = SpoolReader(record.directory.spool)
        pauses = Pauses()
        while context.is_active():
            records = reader.read(after, _WATCH_BYTES)
            if records:
                events = [run_pb2.RunEvent.FromString(payload) for _, payload in records]
                yield service_pb2.WatchRunResponse(events=events)
                last = events[-1]
                if last.WhichOneof("event") == "state_changed" and last.state_changed.state in ENDED:
                    return
            else:
                run = record.refresh()
                if run.state in ENDED and reader.last_sequence >= run.last_sequence:
                    return
                if run.state == run_pb2.RUN_STATE_QUEUED:
                    time.sleep(_WATCH_QUEUED_SECONDS)
                    pauses = Pauses()
                else:
                    pauses.wait()

    @guarded
    def CancelRun(self, request: service_pb2.CancelRunRequest, context: Any) -> service_pb2.CancelRunResponse:
        return service_pb2.CancelRunResponse(run=self._runs.cancel(request.run_id))

    @guarded
    def DropRecords(self, request: service_pb2.DropRecordsRequest, context: Any) -> service_pb2.DropRecordsResponse:
        record = self._runs.get(request.run_id)
        if record.stored.kind != run_pb2.RUN_KIND_PROBE or not record.ended:
            raise CrosstrainError("WRONG_STATE", "run %s is not a probe that has ended" % request.run_id, "run_id")
        mine = recorded_digests(record.directory.spool)
        for other in self._runs.list():
            # Equal tensors are one file: those of a probe that somebody may still read stay.
            if mine and other is not record and other.stored.kind == run_pb2.RUN_KIND_PROBE and not other.ended:
                mine -= recorded_digests(other.directory.spool)
        return service_pb2.DropRecordsResponse(freed_bytes=sum(self._artifacts.remove(digest) for digest in mine))

    def execution(self, message: Any, gpu: bool, here: int = 0) -> Execution:
        """Execution settings; an unspecified device becomes a GPU if there is one and ``gpu`` allows it.

        ``here``: ranks of this service, each with a GPU of its own; 0 for all ranks.
        """
        names = [device.name for device in self._devices]
        if message.device.kind == training_pb2.DEVICE_KIND_UNSPECIFIED:
            # Noted in the request, so that the run's process and later fronts use the same.
            cuda = "cuda:%d" % message.device.index in names and gpu
            message.device.kind = training_pb2.DEVICE_KIND_CUDA if cuda else training_pb2.DEVICE_KIND_CPU
        execution = convert.execution(message, "spec.execution")
        count = (here or execution.parallel.ranks) if execution.device == "cuda" else 1
        for index in range(execution.device_index, execution.device_index + count):
            name = "%s:%d" % (execution.device, index)
            if name not in names:
                raise CrosstrainError("UNSUPPORTED", "spec.execution.device: there is no %s here, only %s"
                                      % (name, ", ".join(names)), "spec.execution.device")
        return execution

    def _engine(self, request: Any) -> service_pb2.EngineDescription:
        convert.check_name(request.run_id, "run_id")
        engine = self._engines.get(request.engine)
        if engine is None:
            raise CrosstrainError("ENGINE_NOT_FOUND", "this service has no engine %r, only %s"
                                  % (request.engine[:140], ", ".join(sorted(self._engines))), "engine")
        if engine.unavailable_reason:
            raise CrosstrainError("ENVIRONMENT", "engine %s cannot run here: %s"
                                  % (engine.name, engine.unavailable_reason), "engine")
        return engine

    def _needs_of_training(self, message: Any, execution: Execution, model: Model, field: str) -> Tuple[
            Set[str], Training]:
        rates = self._artifacts.array(
            convert.check_digest(message.learning_rates_digest, field + ".learning_rates_digest"),
            field + ".learning_rates_digest")
        training = convert.training(message, rates, execution.native, field)
        return (capabilities.features_of_model(model) | capabilities.features_of_training(training)
                | capabilities.features_of_execution(execution)
                | capabilities.features_of_both(model, execution)), training

    def _check_ranks(self, request: Any, engine: service_pb2.EngineDescription, model: Model, training: Training,
                     execution: Execution, samples: int, field: str) -> None:
        """What ranks need beyond declared features. Raises ``INVALID_FIELD``, ``UNSUPPORTED``."""
        parallel = execution.parallel
        if request.HasField("group"):
            convert.group(request.group, parallel, "group")
            capabilities.require(engine.name, features_of(engine), {"parallel.hosts"})
        if parallel.data > training.batch_size:
            raise invalid_field("spec.execution.parallel.data", "%d ranks cannot share batches of %d samples (%d in "
                                "all): every rank needs at least one" % (parallel.data, training.batch_size, samples))
        refusal = self._refusal(engine.name, model, training, execution)
        if refusal:
            raise CrosstrainError("UNSUPPORTED", "engine %s does not support: %s" % (engine.name, refusal), field)

    def _check_weights(self, digest: str, model: Model, field: str) -> None:
        convert.check_digest(digest, field)
        # Reading and checking large weights again for every run of a job would be the slowest part of Train.
        key = (self._artifacts.identity(digest, field), tuple(model.parameter_shapes().items()))
        if key in self._checked:
            return
        try:
            arrays, _ = weights.from_bytes(self._artifacts.get(digest, field))
            weights.check_weights(arrays, model)
        except CrosstrainError as error:
            if error.reason != "INVALID_WEIGHTS":
                raise
            raise CrosstrainError(error.reason, "%s: %s" % (field, error.message), field) from error
        if len(self._checked) >= 1000:
            self._checked.clear()
        self._checked.add(key)

    def _submit(self, kind: int, request: Any, engine: service_pb2.EngineDescription, execution: Execution) -> Any:
        return self._runs.submit(kind, request, engine.version, execution)

    def execution_of(self, stored: StoredRequest) -> Execution:
        """Execution settings of a stored run (which was checked when it was accepted)."""
        return convert.execution(stored.request.spec.execution)


class ArtifactServicer(artifact_pb2_grpc.ArtifactServiceServicer):
    """``ArtifactService`` over a directory."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    @guarded
    def Write(self, request: Iterator[artifact_pb2.WriteRequest], context: Any) -> artifact_pb2.WriteResponse:
        first: Optional[artifact_pb2.WriteRequest] = next(request, None)
        if first is None or first.WhichOneof("part") != "header":
            raise invalid_field("header", "the first message must be a header")
        header = first.header
        convert.check_digest(header.digest, "header.digest")
        if header.size_bytes < 0:
            raise invalid_field("header.size_bytes", "%d is negative" % header.size_bytes)
        existed = self._store.write(header.digest, header.size_bytes, _chunks(request))
        return artifact_pb2.WriteResponse(digest=header.digest, size_bytes=header.size_bytes, existed=existed)

    @guarded_stream
    def Read(self, request: artifact_pb2.ReadRequest, context: Any) -> Iterator[artifact_pb2.ReadResponse]:
        size = self._store.size(request.digest)
        if not 0 <= request.offset <= size:
            raise invalid_field("offset", "%d is not within 0 to %d" % (request.offset, size))
        first = True
        for chunk in self._store.read(request.digest, request.offset):
            yield artifact_pb2.ReadResponse(chunk=chunk, size_bytes=size if first else 0)
            first = False
        if first:
            yield artifact_pb2.ReadResponse(size_bytes=size)

    @guarded
    def Stat(self, request: artifact_pb2.StatRequest, context: Any) -> artifact_pb2.StatResponse:
        if len(request.digests) > 1000:
            raise invalid_field("digests", "%d digests, at most 1000" % len(request.digests))
        for digest in request.digests:
            convert.check_digest(digest, "digests")
        return artifact_pb2.StatResponse(missing=[item for item in request.digests if item not in self._store])


def _chunks(request: Iterator[artifact_pb2.WriteRequest]) -> Iterator[bytes]:
    for message in request:
        if message.WhichOneof("part") != "chunk":
            raise invalid_field("chunk", "every message after the first must be a chunk")
        yield message.chunk
