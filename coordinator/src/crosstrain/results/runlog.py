"""run.log: what happened, for people, with times to the millisecond."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crosstrain_protos.v1 import data_pb2, errors_pb2, run_pb2, training_pb2
from crosstrain_service.model import Model

from .names import error_reason, job_state, run_purpose, run_state, verdict_name
from .records import JobRecord, RunRecord
from .tables import moment

#: Facts named in the environment line; all of them are in fingerprints.json.
_SHOWN = ("python.version", "numpy.version", "cpu.model", "device.kind", "threads.intra", "maths.precision")


def log_text(record: JobRecord, model: Model, training: str = "") -> str:
    """The log of a job: its data, model and ``training`` (batch and learning rate), then the lines of all runs in
    order of time.
    """
    job = record.job
    begin = (job.create_time.seconds, job.create_time.nanos)
    lines: list[tuple[tuple[int, int], str]] = [(begin, f"job {job.job_id}: {job.name}")]
    for name, dataset in (("train", job.train), ("test", job.test)):
        if dataset.samples:
            lines.append((begin, f"data {name}: {_dataset(dataset)}"))
    lines += [(begin, f"data {item.severity}: {item.text}") for item in job.remarks]
    lines.append((begin, f"model {_model(model)}"))
    if training:
        lines.append((begin, f"training: {training}"))
    for run in record.runs.values():
        if run.parallel is not None and run.ranks > 1 and not run.for_the_verdict:
            lines.append((begin, f"[{run.label} {run_part(run)}] {spread_text(run.parallel)}"))
    for run in record.runs.values():
        tag = f"[{run.label} {run_part(run)}]"
        for event in run.events:
            time = (event.time.seconds, event.time.nanos)
            lines += [(time, f"{tag} {text}") for text in _event(event, run)]
    lines.sort(key=lambda line: line[0])
    if record.verdict is not None:
        reached = record.verdict
        text = f"no verdict{_error(reached.error)}"
        if not reached.HasField("error"):
            text = f"verdict {verdict_name(reached.verdict)}{': ' if reached.sentence else ''}{reached.sentence}"
        lines.append((lines[-1][0], text))
    if record.ended:
        end = (job.end_time.seconds, job.end_time.nanos) if job.HasField("end_time") else lines[-1][0]
        state = job_state(record.state)
        lines.append((max(end, lines[-1][0]), f"job {state}{_error(record.error)}"))
    return "".join(f"{moment(*time)} {_clean(text)}\n" for time, text in lines)


def run_part(run: RunRecord) -> str:
    """Which of an engine's runs it is: "#0" of the training runs, else what it is for, as in "envelope 0"."""
    purpose = run_purpose(run.kind, run.purpose)
    if purpose == "train":
        return f"#{run.repeat}"
    return f"{purpose} {run.repeat}" if purpose in ("envelope", "seed") else purpose


def warning_text(event: run_pb2.RunEvent, run: RunRecord) -> str:
    """What somebody who watches the run should hear at once, as in the log; empty for other events."""
    kind = event.WhichOneof("event")
    if kind == "rank_lost" or (kind == "log" and event.log.severity != "info"):
        return " ".join(_event(event, run))
    return ""


def spread_text(parallel: training_pb2.Parallel) -> str:
    """How a run is spread, as in "4 ranks: data 2 x tensor 2, backend native"."""
    split = [(name, getattr(parallel, name)) for name in ("data", "tensor", "pipeline")]
    shown = " x ".join(f"{name} {size}" for name, size in split if size > 1)
    ranks = max(1, parallel.data) * max(1, parallel.tensor) * max(1, parallel.pipeline)
    return f"{ranks} ranks: {shown or 'data 1'}, backend {parallel.backend or 'native'}"


def _dataset(data: data_pb2.Dataset) -> str:
    shape = "x".join(map(str, data.input_shape))
    return (
        f"{data.samples} samples of {shape}, {data.classes} classes, values divided by {data.divisor:g}, "
        f"pixels {data.pixels_digest[:12]}, labels {data.labels_digest[:12]}"
    )


def _model(model: Model) -> str:
    shapes = model.output_shapes()
    layers = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
    total = 0
    for shape in model.parameter_shapes().values():
        size = 1
        for length in shape:
            size *= length
        total += size
    return f"{model.name}: {total} parameters; {layers}"


def _event(event: run_pb2.RunEvent, run: RunRecord) -> Iterator[str]:
    kind = event.WhichOneof("event")
    if kind == "state_changed":
        state = run_state(event.state_changed.state)
        error = event.state_changed.error if event.state_changed.HasField("error") else None
        yield f"{state}{_error(error)}"
    elif kind == "attempt_started":
        started = event.attempt_started
        ranks = f" on {started.ranks} ranks" if started.ranks > 1 else ""
        yield f"attempt {event.attempt} starts at step {started.resume_step}{ranks}"
    elif kind == "rank_lost":
        yield _lost(event.rank_lost, run)
    elif kind == "fingerprint":
        facts = dict(event.fingerprint.facts)
        shown = [name for name in facts if name in _SHOWN or name.startswith("library.")]
        yield "environment: " + ", ".join(f"{name} {facts[name]}" for name in sorted(shown))
    elif kind == "setup_done":
        setup = event.setup_done
        yield f"ready: import {setup.import_seconds:.2f} s, build {setup.build_seconds:.2f} s"
    elif kind == "epoch_ended":
        yield _epoch(event.epoch_ended)
    elif kind == "evaluated":
        value = event.evaluated
        accuracy = 100.0 * value.correct / max(1, value.samples)
        yield f"weights {value.weights_digest[:12]}: loss {value.loss:.6f}, accuracy {accuracy:.2f} %"
    elif kind == "checkpoint_saved":
        yield f"checkpoint before step {event.checkpoint_saved.next_step}"
    elif kind == "log":
        yield f"{event.log.severity}: {event.log.text}"
    elif kind == "result":
        yield from _result(event.result)


def _lost(lost: run_pb2.RankLost, run: RunRecord) -> str:
    who = f"rank {lost.rank}" if lost.rank >= 0 else "all ranks"
    if lost.member:
        who += f" (member {lost.member})" if lost.rank >= 0 else f" of member {lost.member}"
    choices = {training_pb2.RANK_LOSS_SHRINK: "the others go on", training_pb2.RANK_LOSS_FAIL: "the run fails"}
    choice = run.parallel.on_rank_loss if run.parallel is not None else training_pb2.RANK_LOSS_UNSPECIFIED
    if lost.rank < 0 and not lost.member:  # they hang without one to blame, so that there are no others
        choices.pop(training_pb2.RANK_LOSS_SHRINK)
    return f"error: {who} lost: {lost.reason}; on_rank_loss: {choices.get(choice, 'all start again')}"


def _epoch(epoch: run_pb2.EpochEnded) -> str:
    parts = [f"epoch {epoch.epoch + 1}: train loss {epoch.train_loss:.6f}"]
    for name in ("validation", "test"):
        if epoch.HasField(f"{name}_loss"):  # type: ignore[arg-type]
            loss, accuracy = getattr(epoch, f"{name}_loss"), getattr(epoch, f"{name}_accuracy")
            parts.append(f"{name} loss {loss:.6f}, {name} accuracy {100.0 * accuracy:.2f} %")
    parts.append(f"{epoch.train_seconds:.2f} s training, {epoch.evaluation_seconds:.2f} s evaluation")
    return ", ".join(parts)


def _result(result: run_pb2.TrainResult) -> Iterator[str]:
    use = result.resources
    after_import = use.memory_after_import_bytes / 1e6
    memory = f"peak memory {use.memory_peak_bytes / 1e6:.1f} MB ({after_import:.1f} MB after import)"
    if use.HasField("gpu_memory_peak_bytes"):
        memory += f", GPU {use.gpu_memory_peak_bytes / 1e6:.1f} MB"
    yield memory
    accuracy = ""
    if result.HasField("test_accuracy"):
        accuracy = f", test accuracy {100.0 * result.test_accuracy:.2f} %"
    stopped = ", stopped early" if result.stopped_early else ""
    ranks = f" on {result.ranks} ranks" if result.ranks > 1 else ""
    yield f"trained {result.steps} steps in {result.train_seconds:.2f} s{ranks}{accuracy}{stopped}"
    if result.skipped_updates:
        yield f"warning: {result.skipped_updates} updates left out because a gradient overflowed float16"


def _error(error: errors_pb2.Error | None) -> str:
    if error is None:
        return ""
    return f": {error_reason(error.reason)}: {error.message}"


def _clean(text: Any) -> str:
    """Text of services on one line, without control characters."""
    return "".join(character if character.isprintable() else " " for character in str(text))
