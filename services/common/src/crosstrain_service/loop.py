"""The training loop of a run: order, records, epochs, checkpoints, early stopping.

Written once; an engine only iterates (see ``engine.Loop``).
"""

import math
import time
from typing import Any, Iterator, Optional

import numpy as np

from crosstrain_protos.v1 import run_pb2

from . import evaluation
from .checkpoint import CheckpointStore, Position
from .data import Feed, FeedEpoch, Samples, StepClock
from .engine import Engine, Epoch, Loop
from .errors import CrosstrainError
from .events import EventLog
from .model import BatchNorm, Model
from .parallel import progress, replicas
from .parallel.team import ALONE, Team, Together
from .records import Recorder, recorder
from .training import Execution, Training

#: Time in which all processes have heard of a checkpoint that was asked for, seconds.
HEARD_SECONDS = 1.0


class TrainingLoop(Loop):
    """Drives one engine through a run."""

    def __init__(self, engine: Engine, model: Model, training: Training, execution: Execution, feed: Feed,
                 train: Samples, test: Optional[Samples], dtype: Any, events: EventLog,
                 checkpoints: CheckpointStore, position: Position, team: Team = ALONE) -> None:
        self._team = team
        self._engine = engine
        self._model = model
        self._training = training
        self._execution = execution
        self._feed = feed
        self._train = train
        self._test = test
        self._dtype = dtype
        self._events = events
        self._checkpoints = checkpoints
        self._clock = StepClock()
        self._recorder: Recorder = recorder(events, training.learning_rates, feed.steps_per_epoch, team)
        self._lazy = execution.mode == "speed"
        self.position = position
        self.step = position.next_step
        self.first_step_seconds = 0.0
        self._first = position.next_step
        self._mark = time.perf_counter()
        self._epoch_seconds = 0.0
        self._carried = 0.0
        self._asked = False
        # The step before which all processes save a checkpoint that was asked for.
        self._appointed = -1

    def request_checkpoint(self) -> None:
        """Saves a checkpoint after the step at work; may be called by a signal handler or another thread."""
        self._asked = True

    def learning_rate(self, step: int) -> float:
        return float(self._training.learning_rates[step])

    def epochs(self) -> Iterator[Epoch]:
        feed = self._feed
        while self.step < feed.total_steps and not self.position.stopped_early:
            index, first = divmod(self.step, feed.steps_per_epoch)
            if first == 0:
                self.position = self.position._replace(loss_sum=0.0, loss_samples=0, epoch_seconds=0.0)
            count = min(feed.steps_per_epoch - first, feed.total_steps - self.step)
            before = self.step
            self._epoch_seconds = 0.0
            progress.enter(progress.STEP, before)
            self._mark = time.perf_counter()
            yield FeedEpoch(feed, index, first, count, self._execution.prefetch, self._clock)
            if self.step != before + count:
                raise CrosstrainError("ENGINE_FAILED", "the engine executed %d steps of %d in epoch %d"
                                      % (self.step - before, count, index))
            self._end_epoch(index)

    def step_done(self, loss: Any, correct: Optional[Any] = None, sync_seconds: float = 0.0,
                  copy_seconds: float = 0.0) -> None:
        now = time.perf_counter()
        step = self.step
        samples, waited = self._clock.take(step)
        elapsed = now - self._mark
        # A framework that pulls its batch early has waited for it in an earlier step.
        waited = min(waited, max(0.0, elapsed - copy_seconds - sync_seconds))
        value = loss if self._lazy or loss is None else float(loss)
        self.step = step + 1
        progress.step(step + 1)
        if step == self._first:
            self.first_step_seconds = elapsed
        callback = self._carried + (time.perf_counter() - now)
        compute = max(0.0, elapsed - waited - copy_seconds - sync_seconds)
        self._recorder.add(step, value, elapsed + callback, waited, copy_seconds, compute, sync_seconds, callback,
                           samples, correct)
        self._epoch_seconds += elapsed + callback
        self._carried = 0.0
        self._mark = time.perf_counter()
        every = self._execution.checkpoint_every_steps
        # The last step of an epoch is followed by a checkpoint anyway, after the evaluation: one before it
        # would make a run that is resumed from it skip the evaluation.
        last = self.step % self._feed.steps_per_epoch == 0 or self.step == self._feed.total_steps
        if (self._due() or (every and self.step % every == 0)) and not last:
            # The records come first: a checkpoint must never be ahead of what is on disk.
            progress.enter(progress.SAVING)
            self._settle()
            self._account()
            self._save()
            progress.enter(progress.STEP)
            end = time.perf_counter()
            self._carried = end - self._mark  # belongs to the next record, this one is written
            self._mark = end

    def _due(self) -> bool:
        """Whether a checkpoint that was asked for is to be saved now. Several processes agree on a step to come."""
        team = self._team
        if not isinstance(team, Together):
            return self._asked
        if team.leads and self._asked and self._appointed < self.step:
            done = max(1, self.step - self._first)
            mean = (self.position.train_seconds + self._epoch_seconds) / done
            self._appointed = self.step + 1 + math.ceil(HEARD_SECONDS / max(mean, 1e-4))
            team.ask_for_checkpoint(self._appointed)
        return self.step == (self._appointed if team.leads else team.listeners.checkpoint_after)

    def _settle(self) -> None:
        """Writes all records up to here, those of the other processes included."""
        self._recorder.flush()
        if self._team.size > 1:
            self._team.gather(b"")
            self._recorder.flush()

    def _account(self) -> None:
        """Moves what the recorder and the clock have gathered into the position."""
        loss, samples = self._recorder.take_sums()
        position = self.position
        self.position = position._replace(
            next_step=self.step, loss_sum=position.loss_sum + loss, loss_samples=position.loss_samples + samples,
            epoch_seconds=position.epoch_seconds + self._epoch_seconds,
            train_seconds=position.train_seconds + self._epoch_seconds)
        self._epoch_seconds = 0.0

    def _end_epoch(self, index: int) -> None:
        progress.enter(progress.CLOSING_EPOCH)
        self._engine.synchronize()
        self._settle()
        self._account()
        position = self.position
        begin = time.perf_counter()
        event = run_pb2.EpochEnded(
            epoch=index, train_loss=position.loss_sum / max(1, position.loss_samples),
            train_seconds=position.epoch_seconds, last_step=self.step - 1)
        self.refresh_statistics()
        stopping = self._training.early_stopping
        if stopping is not None:
            held_out = self._feed.held_out
            result = self._score(self._train, held_out)
            event.validation_loss = result.loss
            event.validation_accuracy = result.correct / result.samples
            best = position.best_loss
            better = math.isfinite(result.loss) and (best is None or result.loss < best - stopping.min_delta)
            bad = 0 if better else position.bad_epochs + 1
            position = position._replace(best_loss=result.loss if better else best, bad_epochs=bad,
                                         stopped_early=bad >= stopping.patience)
        if self._test is not None:
            result = self._score(self._test, np.arange(len(self._test)))
            event.test_loss = result.loss
            event.test_accuracy = result.correct / result.samples
            position = position._replace(test_loss=result.loss, test_accuracy=result.correct / result.samples)
        # Sums and times are those of process 0, and all must stop at the same epoch.
        self.position = Position(**self._team.tell_json(position._asdict()))
        event.evaluation_seconds = time.perf_counter() - begin
        self._events.emit(epoch_ended=event)
        self._save()

    def refresh_statistics(self) -> None:
        """Recomputes batch norm statistics over the training data (canonical semantics only)."""
        if self._model.layers_of(BatchNorm) and not self._execution.native:
            self._engine.load_statistics(evaluation.population_statistics(
                self._engine, self._model, self._train, self._feed.rows, self._training.batch_size, self._dtype,
                self._team))

    def _score(self, samples: Samples, rows: np.ndarray) -> evaluation.Score:
        return evaluation.whole_score(self._engine, samples, rows, self._dtype, self._team)

    def _save(self) -> None:
        progress.enter(progress.SAVING)
        begin = time.perf_counter()
        self._asked = False
        if self._team.size > 1:
            replicas.compare(self._team, self._engine.parameters(), "after step %d" % (self.step - 1))
        state = self._engine.state()
        if not self._team.leads:
            return
        # A crash of the machine must not leave a checkpoint whose step records are lost.
        self._events.sync()
        digest = self._checkpoints.save(self.position, state)
        self._events.emit(checkpoint_saved=run_pb2.CheckpointSaved(
            next_step=self.position.next_step, digest=digest, seconds=time.perf_counter() - begin))

    def close(self) -> None:
        """Writes what is left and stops the writing thread; raises what stopped it."""
        self._recorder.close()
