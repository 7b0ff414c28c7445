"""What a child does: train, evaluate or probe with one engine."""

import dataclasses
import io
import math
import signal
import threading
import time
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple, Type

import numpy as np

from crosstrain_protos.v1 import run_pb2, training_pb2

from . import convert, evaluation, fingerprint, gpu, weights
from .artifacts import ArtifactStore
from .checkpoint import CheckpointStore, Position
from .data import Feed, Samples
from .engine import Arrays, Batch, Engine
from .errors import CrosstrainError, invalid_field, without_paths
from .events import EventLog
from .loop import TrainingLoop
from .model import BatchNorm, Model
from .parallel import progress
from .parallel.plan import of_process
from .parallel.team import ALONE, Team
from .probe import only, record_steps
from .rundir import StoredRequest
from .telemetry import Telemetry
from .training import Execution, Parallel, Ranks, Training


class Work(NamedTuple):
    """Everything a task needs."""

    engine: Type[Engine]
    stored: StoredRequest
    artifacts: ArtifactStore
    events: EventLog
    checkpoints: CheckpointStore
    resume: Optional[Tuple[Position, Arrays, str]]
    import_seconds: float
    ranks: Ranks = Ranks()
    #: How training is spread in this attempt, where several processes train together; else as asked for.
    parallel: Optional[Parallel] = None
    team: Team = ALONE


def train(work: Work) -> None:
    """Trains, from the newest checkpoint if there is one."""
    progress.build()
    spec = work.stored.request.spec
    execution = _execution(work, spec.execution)
    model = convert.model(spec.model)
    training = _training(work.artifacts, spec.training, execution)
    dtype = _dtype(execution)
    samples = Samples(work.artifacts, spec.train, "train")
    test = Samples(work.artifacts, spec.test, "test") if spec.HasField("test") else None
    team = work.team
    feed = Feed(samples, model, training, dtype, team.share, team.shares)
    begin = time.perf_counter()
    telemetry = Telemetry(work.events, gpu.meter(execution.device, execution.device_index),
                          execution.ranks.folder if execution.ranks.local_size > 1 else "")
    if team.leads:
        telemetry.start()
    engine = work.engine(model, training, execution)
    position = Position()
    resume = _shared(team, work.resume)
    if resume is not None:
        position = resume[0]
        engine.load_state(resume[1])
    else:
        engine.load_parameters(_initial(work.artifacts, spec.initial_weights_digest, model)[0])
    built = time.perf_counter() - begin
    _fingerprint(work, engine, execution, {
        "data.train.pixels_digest": spec.train.pixels_digest,
        "data.train.labels_digest": spec.train.labels_digest,
        "data.test.pixels_digest": spec.test.pixels_digest,
        "data.test.labels_digest": spec.test.labels_digest,
        "weights.initial_digest": spec.initial_weights_digest,
        "training.learning_rates_digest": spec.training.learning_rates_digest,
        "training.seed": str(training.seed),
        "training.batch_size": str(training.batch_size),
        "training.max_steps": str(training.max_steps),
        "training.epochs": str(training.epochs),
        "training.drop_last": str(training.drop_last).lower(),
        "training.keep_order": str(training.keep_order).lower(),
        "training.early_stopping": _stopping(training),
        **_parallel(execution),
    })
    work.events.emit(setup_done=run_pb2.SetupDone(import_seconds=work.import_seconds, build_seconds=built))
    loop = TrainingLoop(engine, model, training, execution, feed, samples, test, dtype, work.events,
                        work.checkpoints, position, team)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, lambda number, frame: loop.request_checkpoint())
    try:
        engine.train(loop)
        engine.synchronize()
    finally:
        loop.close()
    progress.enter(progress.ENDING)
    if model.layers_of(BatchNorm) and not engine.statistics():
        loop.refresh_statistics()
    tensors = dict(engine.parameters())
    tensors.update(engine.statistics())
    reduced = engine.reduced_bytes()
    steps = max(1, loop.step - position.next_step)
    shares = [float(part) for part in team.gather(repr(float("nan" if reduced is None else reduced / steps)).encode())]
    if not team.leads:
        engine.close()
        return
    digest = work.artifacts.put(weights.to_bytes(tensors, {"model": model.name}))
    telemetry.stop()
    sample = telemetry.sample()
    peak = engine.allocator_peak_bytes()
    if peak is not None:
        sample.allocator_peak_bytes = peak
    result = run_pb2.TrainResult(
        weights_digest=digest, steps=loop.step, epochs=-(-loop.step // feed.steps_per_epoch),
        train_seconds=loop.position.train_seconds, first_step_seconds=loop.first_step_seconds,
        test_accuracy=loop.position.test_accuracy, test_loss=loop.position.test_loss,
        stopped_early=loop.position.stopped_early, resources=sample,
        gpu_utilization_median_percent=telemetry.utilization_median(), ranks=execution.parallel.ranks,
        skipped_updates=engine.skipped_updates())
    if execution.parallel.ranks > 1 and all(math.isfinite(value) for value in shares):
        result.reduced_bytes_per_step = sum(shares) / len(shares)
    engine.close()
    work.events.emit(result=result)


def _parallel(execution: Execution) -> Dict[str, str]:
    """How training is spread, as facts; nothing with one rank."""
    parallel = execution.parallel
    if parallel.ranks == 1:
        return {}
    facts = {"parallel." + name: str(value) for name, value in dataclasses.asdict(parallel).items()}
    facts["parallel.processes"] = str(execution.ranks.size)
    facts["parallel.members"] = str(execution.ranks.members)
    return facts


def _shared(team: Team, resume: Optional[Tuple[Position, Arrays, str]]) -> Optional[Tuple[Position, Arrays, str]]:
    """The checkpoint that process 0 has found, for all processes: another host has none, or an older one."""
    if team.size == 1:
        return resume
    position = team.tell_json(resume[0]._asdict() if resume is not None else None)
    if position is None:
        return None
    said = team.tell(weights.to_bytes(resume[1]) if resume is not None and team.leads else None)
    return Position(**position), weights.from_bytes(said)[0], ""


def _stopping(training: Training) -> str:
    """Early stopping in words; empty without it."""
    stopping = training.early_stopping
    if stopping is None:
        return ""
    return "validation share %r, patience %d, min_delta %r" % (
        stopping.validation_share, stopping.patience, stopping.min_delta)


def evaluate(work: Work) -> None:
    """Evaluates every given set of weights on one data set."""
    spec = work.stored.request.spec
    execution = dataclasses.replace(_execution(work, spec.execution), parallel=Parallel())
    model = convert.model(spec.model)
    samples = Samples(work.artifacts, spec.test, "test")
    engine = work.engine(model, _idle_training(), execution)
    _fingerprint(work, engine, execution, {"data.test.pixels_digest": spec.test.pixels_digest})
    dtype = _dtype(execution)
    for digest in spec.weights_digests:
        begin = time.perf_counter()
        parameters, statistics = _initial(work.artifacts, digest, model)
        if model.layers_of(BatchNorm) and not statistics:
            raise CrosstrainError("INVALID_WEIGHTS", "the weights hold no batch norm statistics, so they cannot be "
                                  "evaluated; weights saved by a training run hold them")
        engine.load_parameters(parameters)
        if statistics:
            engine.load_statistics(statistics)
        values = evaluation.logits(engine, samples, np.arange(len(samples)), dtype,
                                   spec.batch_size or evaluation.BATCH)
        score = evaluation.score(values, samples.labels)
        buffer = io.BytesIO()
        np.save(buffer, values, allow_pickle=False)
        work.events.emit(evaluated=run_pb2.Evaluated(
            weights_digest=digest, loss=score.loss, correct=score.correct, samples=score.samples,
            logits_digest=work.artifacts.put(buffer.getvalue()), seconds=time.perf_counter() - begin))
    engine.close()


def probe(work: Work) -> None:
    """Executes every case and records the wanted steps; a case that fails does not stop the others."""
    spec = work.stored.request.spec
    execution = _execution(work, spec.execution)
    first = True
    for case in spec.cases:
        try:
            for step, tensors, engine in _probe_case(work, case, execution):
                if first:
                    _fingerprint(work, engine, execution, {})
                    first = False
                digest = work.artifacts.put(weights.to_bytes(only(tensors, case.groups)))
                work.events.emit(probe_recorded=run_pb2.ProbeRecorded(case_id=case.case_id, step=step, digest=digest))
        except CrosstrainError as error:
            failure = error
            if work.team.size > 1:
                raise  # the other processes would wait for this one
        except OSError:
            raise
        except Exception as error:  # whatever a framework raises belongs to the case
            if work.team.size > 1:
                raise
            failure = CrosstrainError(
                "ENGINE_FAILED", without_paths("%s: %s" % (type(error).__name__, str(error)[:1000])))
        else:
            continue
        work.events.emit(probe_recorded=run_pb2.ProbeRecorded(
            case_id=case.case_id, step=-2, error=failure.to_proto()))


def _probe_case(work: Work, case: run_pb2.ProbeCase, execution: Execution) -> Any:
    progress.build()
    model = convert.model(case.model)
    training = _training(work.artifacts, case.training, execution)
    dtype = _dtype(execution)
    samples = Samples(work.artifacts, case.train, "train")
    team = work.team
    feed = Feed(samples, model, training, dtype, team.share, team.shares)
    whole = Feed(samples, model, training, dtype) if team.size > 1 and team.leads else feed
    for step in case.steps:
        if not 0 <= step < feed.total_steps:
            raise invalid_field("steps", "step %d is not within 0 to %d" % (step, feed.total_steps - 1))
    engine = work.engine(model, training, execution)
    engine.load_parameters(_initial(work.artifacts, case.initial_weights_digest, model)[0])

    for step, tensors in record_steps(engine, _all_batches(feed), set(case.steps), feed.step_rows, team,
                                      _all_batches(whole)):
        yield step, tensors, engine
    if case.HasField("test"):
        test = Samples(work.artifacts, case.test, "test")
        if model.layers_of(BatchNorm) and not execution.native:
            engine.load_statistics(evaluation.population_statistics(
                engine, model, samples, feed.rows, training.batch_size, dtype, team))
        logits = evaluation.whole_logits(engine, test, np.arange(len(test)), dtype, team)
        statistics = engine.statistics()
        if logits is not None:
            tensors = {"logits": logits}
            tensors.update(("statistic/" + name, value) for name, value in statistics.items())
            yield -1, tensors, engine
    engine.close()


def _all_batches(feed: Feed) -> Iterator[Batch]:
    """The batches of all epochs."""
    remaining, epoch = feed.total_steps, 0
    while remaining > 0:
        count = min(remaining, feed.steps_per_epoch)
        yield from feed.batches(epoch, 0, count)
        remaining, epoch = remaining - count, epoch + 1


def _execution(work: Work, message: training_pb2.Execution) -> Execution:
    execution = convert.execution(message)
    if work.parallel is not None:
        execution = dataclasses.replace(execution, parallel=work.parallel)
    execution = of_process(execution, work.ranks, bool(message.intra_threads))
    if not execution.precision:
        execution = dataclasses.replace(execution, precision=work.engine.default_precision)
    return execution


def _dtype(execution: Execution) -> Any:
    return np.float64 if execution.precision == "float64" else np.float32


def _training(artifacts: ArtifactStore, message: training_pb2.Training, execution: Execution) -> Training:
    rates = artifacts.array(message.learning_rates_digest, "training.learning_rates_digest")
    return convert.training(message, rates, execution.native)


def _idle_training() -> Training:
    """Settings for an engine that is never trained."""
    message = training_pb2.Training(epochs=1, batch_size=evaluation.BATCH)
    message.optimizer.sgd.momentum = 0.0
    message.optimizer.sgd.nesterov = False
    return convert.training(message, np.ones(1))


def _initial(artifacts: ArtifactStore, digest: str, model: Model) -> Tuple[Arrays, Arrays]:
    arrays, _ = weights.from_bytes(artifacts.get(digest, "weights_digest"))
    return weights.check_weights(arrays, model)


def _fingerprint(work: Work, engine: Engine, execution: Execution, extra: Dict[str, str]) -> None:
    table = fingerprint.facts(work.engine.info(), execution)
    table.update(("maths." + name, value) for name, value in engine.fingerprint().items())
    table.update((name, value) for name, value in extra.items() if value)
    work.events.emit(fingerprint=run_pb2.Fingerprint(facts=fingerprint.clean(table)))


TASKS: Dict[int, Callable[[Work], None]] = {
    run_pb2.RUN_KIND_TRAIN: train,
    run_pb2.RUN_KIND_EVALUATE: evaluate,
    run_pb2.RUN_KIND_PROBE: probe,
}
