"""Builds the events of a job as services and coordinator record them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from crosstrain_protos.v1 import coordinator_pb2, data_pb2, errors_pb2, run_pb2, training_pb2

DOCUMENT = """name: recorded
model: cnn2
training:
  batch_size: 8
  optimizer: {sgd: {learning_rate: 0.1}}
engines: [reference, torch, keras-tensorflow@2.12.0, keras-tensorflow@3.15.1]
"""
START = 1_700_000_000


class Recording:
    """Events of a job in order; times advance by 1.5 ms per event."""

    def __init__(self, document: str = DOCUMENT, job_id: str = "job-1", name: str = "recorded") -> None:
        data = data_pb2.Dataset(
            pixels_digest="a" * 64, labels_digest="b" * 64, samples=16, input_shape=(1, 8, 8), classes=3, divisor=255
        )
        self.job = coordinator_pb2.Job(
            job_id=job_id, name=name, state=coordinator_pb2.JOB_STATE_RUNNING, document=document, train=data, test=data
        )
        self.job.create_time.seconds = START
        self.events: list[coordinator_pb2.JobEvent] = []
        self.artifacts: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        self._records: dict[str, coordinator_pb2.JobRun] = {}

    def add_run(
        self,
        engine: str,
        version: str,
        repeat: int = 0,
        kind: Any = run_pb2.RUN_KIND_TRAIN,
        variant: str = "",
        parallel: training_pb2.Parallel | None = None,
    ) -> str:
        part = "evaluate" if kind == run_pb2.RUN_KIND_EVALUATE else str(repeat)
        told = "-" + variant.replace("=", "") if variant else ""
        run_id = f"job-1.{engine}-{version}{told}.{part}"
        record = self.job.runs.add(repeat=repeat, service="fake", variant=variant, parallel=parallel)
        record.run.CopyFrom(
            run_pb2.Run(run_id=run_id, kind=kind, engine=engine, engine_version=version, state=run_pb2.RUN_STATE_QUEUED)
        )
        self._records[run_id] = record
        self._append(run_changed=record)
        return run_id

    def emit(self, run_id: str, attempt: int = 1, **event: Any) -> None:
        self._counts[run_id] = self._counts.get(run_id, 0) + 1
        message = run_pb2.RunEvent(run_id=run_id, sequence=self._counts[run_id], attempt=attempt, **event)
        message.time.FromNanoseconds(START * 10**9 + len(self.events) * 1_500_000)
        self._append(run_event=message)

    def steps(self, run_id: str, first: int, losses: list[float], attempt: int = 1) -> None:
        count = len(losses)
        self.emit(
            run_id,
            attempt,
            steps=run_pb2.StepRecords(
                first_step=first,
                epoch=[step // 4 for step in range(first, first + count)],
                loss=losses,
                learning_rate=[0.1] * count,
                step_seconds=[0.5] * count,
                data_seconds=[0.1] * count,
                copy_seconds=[0.0] * count,
                compute_seconds=[0.3] * count,
                sync_seconds=[0.0] * count,
                callback_seconds=[0.1] * count,
                samples=[8] * count,
            ),
        )

    def epoch(self, run_id: str, epoch: int, last_step: int, attempt: int = 1, loss: float = 1.0) -> None:
        ended = run_pb2.EpochEnded(
            epoch=epoch, train_loss=loss, test_loss=0.5, test_accuracy=0.875, train_seconds=2, evaluation_seconds=1,
            last_step=last_step,
        )  # fmt: skip
        self.emit(run_id, attempt, epoch_ended=ended)

    def start(self, run_id: str, resume_step: int = 0, attempt: int = 1) -> None:
        self.emit(run_id, attempt, attempt_started=run_pb2.AttemptStarted(resume_step=resume_step))
        facts = {"device.kind": "cpu", "device.index": "0", "numpy.version": "2.4.6", "cpu.model": "a processor"}
        self.emit(run_id, attempt, fingerprint=run_pb2.Fingerprint(facts=facts))

    def succeed(self, run_id: str, steps: int = 8, weights: str = "c" * 64) -> None:
        result = run_pb2.TrainResult(
            weights_digest=weights, steps=steps, epochs=2, train_seconds=4.0, test_accuracy=0.875, test_loss=0.5,
            resources=run_pb2.ResourceSample(memory_peak_bytes=250_000_000, memory_after_import_bytes=100_000_000),
        )  # fmt: skip
        self.emit(run_id, result=result)
        self._end(run_id, run_pb2.RUN_STATE_SUCCEEDED)

    def fail(self, run_id: str, message: str) -> None:
        error = errors_pb2.Error(reason=errors_pb2.ERROR_REASON_CHILD_DIED, message=message)
        self._end(run_id, run_pb2.RUN_STATE_FAILED, error)

    def _end(self, run_id: str, state: Any, error: errors_pb2.Error | None = None) -> None:
        self.emit(run_id, state_changed=run_pb2.StateChanged(state=state, error=error))
        run = self._records[run_id].run
        run.state = state
        run.end_time.FromNanoseconds(START * 10**9 + len(self.events) * 1_500_000)
        if error is not None:
            run.error.CopyFrom(error)

    def evaluated(self, run_id: str, weights: str, logits: np.ndarray, labels: np.ndarray) -> None:
        buffer = io.BytesIO()
        np.save(buffer, logits, allow_pickle=False)
        digest = f"{len(self.artifacts):064x}"
        self.artifacts[digest] = buffer.getvalue()
        correct = int((logits.argmax(axis=1) == labels).sum())
        value = run_pb2.Evaluated(
            weights_digest=weights, loss=1.0, correct=correct, samples=len(labels), logits_digest=digest
        )
        self.emit(run_id, evaluated=value)

    def end(self, state: Any = coordinator_pb2.JOB_STATE_SUCCEEDED) -> None:
        self._append(state_changed=coordinator_pb2.JobStateChanged(state=state))
        self.job.state = state
        self.job.end_time.FromNanoseconds(START * 10**9 + len(self.events) * 1_500_000)

    def _append(self, **event: Any) -> None:
        self.events.append(coordinator_pb2.JobEvent(sequence=len(self.events) + 1, **event))

    # The part of the client that results are written with.

    def get_job(self, job_id: str) -> coordinator_pb2.Job:
        assert job_id == self.job.job_id
        return self.job

    def watch_job(self, job_id: str, after: int = 0) -> list[coordinator_pb2.JobEvent]:
        assert job_id == self.job.job_id
        return self.events[after:]

    def read(self, digest: str) -> bytes:
        return self.artifacts[digest]


def full_recording() -> Recording:
    """Four engines, two versions of one; torch was killed and went on from step 4; everything succeeded."""
    recording = Recording()
    weights = {}
    for index, (engine, version) in enumerate(
        (("reference", "1"), ("torch", "2.13.0"), ("keras-tensorflow", "2.12.0"), ("keras-tensorflow", "3.15.1"))
    ):
        run = recording.add_run(engine, version)
        recording.emit(run, state_changed=run_pb2.StateChanged(state=run_pb2.RUN_STATE_RUNNING))
        recording.start(run)
        losses = [2.0 - 0.1 * step for step in range(8)]
        if engine == "torch":
            recording.steps(run, 0, losses[:4])
            recording.epoch(run, 0, 3)
            recording.steps(run, 4, [9.0, 9.0])
            recording.start(run, resume_step=4, attempt=2)
            recording.steps(run, 4, [loss + 1e-5 for loss in losses[4:]], attempt=2)
            recording.epoch(run, 1, 7, attempt=2)
        else:
            recording.steps(run, 0, losses)
            recording.epoch(run, 0, 3)
            recording.epoch(run, 1, 7)
        weights[run] = f"{index + 1:x}" * 64
        recording.succeed(run, weights=weights[run])
    return recording
