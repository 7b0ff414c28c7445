"""A FAKE training service: it speaks the real API but trains nothing. Its probes are those of the reference engine.

It stands for a remote service in tests of the coordinator only. It can be slow, break streams, stop
and come back with or without its runs, and it counts how often it was made to execute a run.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from crosstrain_protos.v1 import artifact_pb2_grpc, errors_pb2, run_pb2, service_pb2, service_pb2_grpc
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import tasks
from crosstrain_service.artifacts import ArtifactStore
from crosstrain_service.capabilities import FEATURES
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.rundir import StoredRequest
from crosstrain_service.servicer import ArtifactServicer, guarded, guarded_stream

ENDED = (run_pb2.RUN_STATE_SUCCEEDED, run_pb2.RUN_STATE_FAILED, run_pb2.RUN_STATE_CANCELLED)


class FakeRun:
    """Events of one run, made by a thread of its own."""

    def __init__(self, run: run_pb2.Run, body: bytes) -> None:
        self.run = run
        self.body = body
        self.events: list[run_pb2.RunEvent] = []
        self.changed = threading.Condition()
        self.cancelled = threading.Event()

    def emit(self, **event: Any) -> None:
        now = Timestamp()
        now.GetCurrentTime()
        with self.changed:
            sequence = len(self.events) + 1
            self.events.append(
                run_pb2.RunEvent(run_id=self.run.run_id, sequence=sequence, attempt=1, time=now, **event)
            )
            self.run.last_sequence = sequence
            if "state_changed" in event:
                self.run.state = event["state_changed"].state
            self.changed.notify_all()


class Float32Reference(ReferenceEngine):
    """The reference engine as frameworks behave: float32 unless asked otherwise."""

    default_precision = "float32"


class FakeService(service_pb2_grpc.TrainingServiceServicer):
    """Serves on ``address`` from :meth:`start` to :meth:`stop`; may be started again.

    Attributes:
        executions: how often the service began to execute each run.
        order: run ids in the order in which they began.
        running: runs at work now, and ``most_running`` the most there ever were.
        break_after: a watched stream breaks after so many events; None: never.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "fake",
        engines: tuple[tuple[str, str], ...] = (("torch", "2.13.0"),),
        steps: int = 5,
        delay: float = 0.0,
        lacking: tuple[str, ...] = (),
        host: str = "127.0.0.1",
        devices: tuple[str, ...] = ("cpu:0",),
    ) -> None:
        self.devices = devices
        self.host = host
        self.name = name
        self.engines = engines
        self.steps = steps
        self.delay = delay
        self.lacking = lacking
        self.failing: set[str] = set()
        self.probes_failing: set[str] = set()
        #: Numbers of data ranks, as in "data=2", with which probes fail.
        self.failing_variants: set[str] = set()
        #: Engine classes that stand behind probes; the reference engine for the others.
        self.probing: dict[str, Any] = {}
        self.dropped: list[str] = []
        self.break_after: int | None = None
        #: Step after which a rank is lost, in runs that have several.
        self.loses_rank_at: int | None = None
        #: How much the durations of steps vary.
        self.variation = 0
        self.executions: Counter[str] = Counter()
        self.order: list[str] = []
        self.running: set[str] = set()
        self.most_running = 0
        self.watches = 0
        self.runs: dict[str, FakeRun] = {}
        self.artifacts = ArtifactStore(str(folder / name))
        self.port = 0
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> FakeService:
        server = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_TrainingServiceServicer_to_server(self, server)
        artifact_pb2_grpc.add_ArtifactServiceServicer_to_server(ArtifactServicer(self.artifacts), server)
        checks = health.HealthServicer()
        checks.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        self.port = server.add_insecure_port(self.address)
        server.start()
        self._server = server
        return self

    def stop(self) -> None:
        """Breaks all connections at once; runs go on, as children of a real service do."""
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def lose_runs(self) -> None:
        """Forgets all runs, as a service does whose disk was lost."""
        for run in self.runs.values():
            run.cancelled.set()
        self.runs = {}

    @guarded
    def Describe(self, request: Any, context: Any) -> service_pb2.DescribeResponse:
        support = {True: service_pb2.SUPPORT_UNSUPPORTED, False: service_pb2.SUPPORT_EXACT}
        features = [
            service_pb2.Feature(name=name, support=support[name in self.lacking])
            for name in FEATURES
            if name != "device.cuda" or "cuda:0" in self.devices
        ]
        return service_pb2.DescribeResponse(
            service=self.name,
            engines=[
                service_pb2.EngineDescription(name=name, version=version, features=features)
                for name, version in self.engines
            ],
            devices=[service_pb2.DeviceDescription(name=name) for name in self.devices],
        )

    @guarded
    def Train(self, request: service_pb2.TrainRequest, context: Any) -> service_pb2.TrainResponse:
        spec = request.spec
        for data in [spec.train, *([spec.test] if spec.HasField("test") else [])]:
            self.artifacts.require(data.pixels_digest, "pixels")
            self.artifacts.require(data.labels_digest, "labels")
        self.artifacts.require(spec.initial_weights_digest, "initial_weights")
        self.artifacts.require(spec.training.learning_rates_digest, "learning_rates")
        return service_pb2.TrainResponse(run=self._submit(run_pb2.RUN_KIND_TRAIN, request))

    @guarded
    def Evaluate(self, request: service_pb2.EvaluateRequest, context: Any) -> service_pb2.EvaluateResponse:
        for digest in request.spec.weights_digests:
            self.artifacts.require(digest, "weights")
        return service_pb2.EvaluateResponse(run=self._submit(run_pb2.RUN_KIND_EVALUATE, request))

    @guarded
    def Probe(self, request: service_pb2.ProbeRequest, context: Any) -> service_pb2.ProbeResponse:
        for case in request.spec.cases:
            for digest in (case.train.pixels_digest, case.training.learning_rates_digest, case.initial_weights_digest):
                self.artifacts.require(digest, "case")
        return service_pb2.ProbeResponse(run=self._submit(run_pb2.RUN_KIND_PROBE, request))

    @guarded
    def DropRecords(self, request: service_pb2.DropRecordsRequest, context: Any) -> service_pb2.DropRecordsResponse:
        freed = 0
        for event in self._get(request.run_id).events:
            if event.WhichOneof("event") == "probe_recorded" and event.probe_recorded.digest:
                freed += self.artifacts.remove(event.probe_recorded.digest)
        self.dropped.append(request.run_id)
        return service_pb2.DropRecordsResponse(freed_bytes=freed)

    @guarded
    def GetRun(self, request: service_pb2.GetRunRequest, context: Any) -> service_pb2.GetRunResponse:
        return service_pb2.GetRunResponse(run=self._get(request.run_id).run)

    @guarded_stream
    def WatchRun(self, request: service_pb2.WatchRunRequest, context: grpc.ServicerContext) -> Any:
        run = self._get(request.run_id)
        self.watches += 1
        sent, after = 0, request.after_sequence
        while context.is_active():
            with run.changed:
                if len(run.events) <= after:
                    if run.run.state in ENDED:
                        return
                    run.changed.wait(0.2)
                batch = run.events[after : after + 7]
            for event in batch:
                if self.break_after is not None and sent >= self.break_after:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "broken on purpose")
                yield service_pb2.WatchRunResponse(events=[event])
                after, sent = event.sequence, sent + 1

    @guarded
    def CancelRun(self, request: service_pb2.CancelRunRequest, context: Any) -> service_pb2.CancelRunResponse:
        run = self._get(request.run_id)
        run.cancelled.set()
        return service_pb2.CancelRunResponse(run=run.run)

    def _get(self, run_id: str) -> FakeRun:
        if run_id not in self.runs:
            raise CrosstrainError("RUN_NOT_FOUND", f"there is no run {run_id}", "run_id")
        return self.runs[run_id]

    def _submit(self, kind: Any, request: Any) -> run_pb2.Run:
        body = request.SerializeToString(deterministic=True)
        with self._lock:
            known = self.runs.get(request.run_id)
            if known is not None:
                if known.body != body:
                    raise CrosstrainError("ID_REUSED", "the run id was used with another body", "run_id")
                return known.run
            version = dict(self.engines)[request.engine]
            message = run_pb2.Run(
                run_id=request.run_id, kind=kind, engine=request.engine, engine_version=version, attempt=1,
                state=run_pb2.RUN_STATE_QUEUED,
            )
            message.create_time.GetCurrentTime()
            run = self.runs[request.run_id] = FakeRun(message, body)
        run.emit(state_changed=run_pb2.StateChanged(state=run_pb2.RUN_STATE_QUEUED))
        threading.Thread(target=self._execute, args=(run, request), daemon=True).start()
        return run.run

    def _execute(self, run: FakeRun, request: Any) -> None:
        with self._lock:
            self.executions[request.run_id] += 1
            self.order.append(request.run_id)
            self.running.add(request.run_id)
            self.most_running = max(self.most_running, len(self.running))
        parallel = request.spec.execution.parallel
        ranks = max(1, parallel.data) * max(1, parallel.tensor) * max(1, parallel.pipeline)
        run.emit(attempt_started=run_pb2.AttemptStarted(resume_step=0, ranks=ranks))
        run.emit(state_changed=run_pb2.StateChanged(state=run_pb2.RUN_STATE_RUNNING))
        kinds = {run_pb2.RUN_KIND_TRAIN: self._train, run_pb2.RUN_KIND_PROBE: self._probe}
        state = kinds.get(run.run.kind, self._evaluate)(run, request)
        error = None
        if state == run_pb2.RUN_STATE_FAILED:
            error = errors_pb2.Error(reason=errors_pb2.ERROR_REASON_ENGINE_FAILED, message="failed on purpose")
        with self._lock:
            self.running.discard(request.run_id)
        run.emit(state_changed=run_pb2.StateChanged(state=state, error=error))

    def _train(self, run: FakeRun, request: service_pb2.TrainRequest) -> Any:
        run.emit(fingerprint=run_pb2.Fingerprint(facts={"engine": request.engine, "numpy.version": "2"}))
        for step in range(self.steps):
            if run.cancelled.wait(self.delay):
                return run_pb2.RUN_STATE_CANCELLED
            loss = 2.0 / (1 + step) + (1e-9 if request.engine != "torch" else 0.0) * step
            records = run_pb2.StepRecords(first_step=step, epoch=[0], loss=[loss], learning_rate=[0.1], samples=[8])
            records.step_seconds.append(0.01 * (1 + self.variation * step % 3))
            data = request.spec.execution.parallel.data
            for rank in range(data):
                # Half of every step is spent waiting; rank 0 computes twice as long as the others.
                compute = 0.4 if rank == 0 else 0.2
                records.ranks.add(
                    step_seconds=[1.0], data_seconds=[0.1], compute_seconds=[compute], sync_seconds=[0.5],
                    samples=[8 // data + (rank < 8 % data)],
                )  # fmt: skip
            run.emit(steps=records)
            if step == self.loses_rank_at and data > 1:
                run.emit(rank_lost=run_pb2.RankLost(rank=1, reason="rank 1 was ended by signal 9"))
        if request.engine in self.failing:
            return run_pb2.RUN_STATE_FAILED
        weights = self.artifacts.put(f"weights of {request.run_id}".encode())
        accuracy = 0.75 if request.spec.HasField("test") else None
        result = run_pb2.TrainResult(
            weights_digest=weights, steps=self.steps, test_accuracy=accuracy, train_seconds=0.01 * self.steps
        )
        result.ranks = max(1, request.spec.execution.parallel.data)
        if result.ranks > 1:
            result.reduced_bytes_per_step = 1000.0
        run.emit(result=result)
        return run_pb2.RUN_STATE_SUCCEEDED

    def _probe(self, run: FakeRun, request: service_pb2.ProbeRequest) -> Any:
        variant = f"data={request.spec.execution.parallel.data}"
        if request.engine in self.probes_failing or variant in self.failing_variants:
            return run_pb2.RUN_STATE_FAILED
        engine = self.probing.get(request.engine, Float32Reference)
        stored = StoredRequest(run_pb2.RUN_KIND_PROBE, request, b"", 0.0, "")
        tasks.probe(tasks.Work(engine, stored, self.artifacts, run, None, None, 0.0))  # type: ignore[arg-type]
        return run_pb2.RUN_STATE_CANCELLED if run.cancelled.wait(self.delay) else run_pb2.RUN_STATE_SUCCEEDED

    def _evaluate(self, run: FakeRun, request: service_pb2.EvaluateRequest) -> Any:
        for digest in request.spec.weights_digests:
            time.sleep(self.delay)
            logits = self.artifacts.put(hashlib.sha256((digest + request.engine).encode()).digest())
            run.emit(evaluated=run_pb2.Evaluated(weights_digest=digest, loss=1.0, samples=8, logits_digest=logits))
        return run_pb2.RUN_STATE_SUCCEEDED
