"""The engine ``tensorflow``: variables in a ``tf.Module`` and a training step compiled by ``tf.function``."""

import gc
import logging
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
import tensorflow as tf

from crosstrain_service.engine import Arrays, Batch, Engine, EngineInfo, Intermediates, Loop
from crosstrain_service.model import Dropout, Model
from crosstrain_service.training import Execution, Training

from . import device, features, placement, precision
from .layout import Layout
from .model import Network, Pass
from .optimizer import CanonicalUpdate, NativeUpdate, read_state, write_state
from .placement import Placement
from .replicas import data_ranks, together
from .shares import Share, loss_sum, pieces, scaled

_log = logging.getLogger(__name__)


class TensorFlowEngine(Engine):
    """A custom training loop around one compiled step, as users of plain TensorFlow write it.

    Native semantics differ in the update (``tf.keras.optimizers`` with their defaults), dropout (drawn by
    ``tf.nn.experimental.stateless_dropout`` from seed and step, so that a resumed run draws the same), batch norm
    (the fused operation; running averages, variance unbiased for feature maps) and L2 (see
    :class:`.optimizer.NativeUpdate`). Operations, their gradients and the loss are the same in both.
    """

    name = "tensorflow"

    @classmethod
    def info(cls) -> EngineInfo:
        return EngineInfo(cls.name, tf.__version__, features.plain_features(),
                          {"tensorflow": tf.__version__, "numpy": np.__version__})

    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        self._execution = execution
        self._device = device.configure(execution, model)
        self._dtype, compute = precision.types(execution.precision)
        fused = precision.fuse(execution)
        self._layout = Layout(model)
        self._masked = [] if execution.native else [layer.name for layer in model.layers_of(Dropout)]
        self._replicas = data_ranks(execution)
        parallel = execution.parallel
        self._placed = Placement(model, execution) if parallel.tensor * parallel.pipeline > 1 else None
        self._steps = 0
        self._skipped = 0
        self._bytes_per_step = self._reduced_per_step(model)
        with self._replicas.scope() if self._replicas is not None else tf.device(self._device):
            self._network = Network(model, self._layout, self._dtype, execution.native, training.seed,
                                    execution.parallel.local_batch_norm, compute, self._placed, fused)
            self._variables = self._network.variables_by_name
            update = NativeUpdate if execution.native else CanonicalUpdate
            self._update = update(self._variables, training, self._placed is not None)
            self._scale = precision.LossScale() if compute == tf.float16 else None
        # One rank that computes its batch at once takes the mean, as everybody does; the others add sums up.
        self._pieces = execution.accumulation_steps * (self._placed.micro_batches if self._placed is not None else 1)
        self._whole = self._replicas is None and self._pieces == 1
        compiled = True if execution.compiler == "xla" else None
        self._step = tf.function(self._training_step, jit_compile=compiled, autograph=False)
        self._logits = tf.function(self._evaluation, jit_compile=compiled, autograph=False, reduce_retracing=True)
        self._constants: Dict[str, Tuple[float, tf.Tensor]] = {}

    def _reduced_per_step(self, model: Model) -> int:
        """Bytes that all copies of the network in this process hand to reductions in one step."""
        if self._replicas is None:
            return 0
        values = sum(int(np.prod(shape)) for shape in model.parameter_shapes().values())
        if not self._execution.parallel.local_batch_norm:
            # Two sums over channels forward (mean, variance), and the gradients of both backward.
            values += sum(2 * int(np.prod(shape)) for shape in model.statistics_shapes().values())
        return self._replicas.local * values * self._dtype.size

    def _training_step(self,
                       x: tf.Tensor,
                       labels: tf.Tensor,
                       learning_rate: tf.Tensor,
                       masks: Dict[str, tf.Tensor],
                       weight: Tuple[Any, Any]) -> tf.Tensor:
        """One update; the mean loss over the rows of this process."""
        share = self._share(x, labels, masks, weight)
        if self._replicas is None:
            loss = self._rank_step(share, learning_rate)
            return loss if self._whole else loss / share.rows
        sums = self._replicas.run(lambda part: self._rank_step(part, learning_rate), share)
        return tf.add_n(sums) / share.rows

    def _rank_step(self, share: Share, learning_rate: tf.Tensor) -> tf.Tensor:
        """One update of one copy of the network; mean loss if its batch is computed at once, else the sum over rows."""
        loss, gradients = self._differentiate(share)
        if share.add is not None:
            gradients = share.add(gradients)
        if self._scale is None:
            self._update.apply(gradients, learning_rate)
        else:
            self._scale.apply(gradients, lambda unscaled: self._update.apply(unscaled, learning_rate))
        return loss

    def _differentiate(self, share: Share) -> Tuple[tf.Tensor, List[tf.Tensor]]:
        """Loss as :meth:`_rank_step` gives it, and this share's addend of the gradients (scaled in float16)."""
        losses: List[tf.Tensor] = []
        gradients: List[tf.Tensor] = []
        for piece in pieces(share, self._pieces):
            # One after the other, so that the activations of one are in memory at a time; a pipeline wants several.
            with tf.control_dependencies(gradients if self._placed is None else []):
                loss, found = self._piece(piece, not losses)
            losses.append(loss)
            gradients = [one + other for one, other in zip(gradients, found)] if gradients else found
        return tf.add_n(losses), gradients

    def _piece(self, share: Share, with_penalty: bool) -> Tuple[tf.Tensor, List[tf.Tensor]]:
        run = Pass(training=True, update_statistics=True, masks=share.masks, step=self._iterations(), share=share)
        if self._placed is not None:
            loss, _, found = placement.differentiate(
                self._network, self._placed, run, share.x, lambda logits: self._losses(logits, share, []),
                self._variables)
            return loss, [found[name] for name in self._variables]
        with tf.GradientTape() as tape:
            logits = self._network(share.x, run)
            loss, total = self._losses(logits, share, self._update.penalty() if with_penalty else [])
        return loss, tape.gradient(total, list(self._variables.values()))

    def _losses(self, logits: tf.Tensor, share: Share, penalties: List[tf.Tensor]) -> Tuple[tf.Tensor, tf.Tensor]:
        """The loss to report, and the one to differentiate."""
        if self._whole:
            loss = mean_cross_entropy(logits, share.labels)
            total = tf.add_n([loss] + penalties)
        else:
            loss = loss_sum(logits, share.labels)
            total = tf.add_n([scaled(loss, share)] + [term / self._execution.parallel.data for term in penalties])
            loss = loss * tf.cast(share.real, loss.dtype)
        return loss, total if self._scale is None else total * self._scale.scale

    def _share(self, x: tf.Tensor, labels: tf.Tensor, masks: Dict[str, tf.Tensor], weight: Tuple[Any, Any]) -> Share:
        share = Share(x, labels, masks, rank=self._execution.data_share)
        if weight:
            return share._replace(real=weight[0], total=weight[1])
        return share._replace(total=share.rows)

    def _evaluation(self, x: tf.Tensor) -> tf.Tensor:
        return self._network(x, Pass())

    def _iterations(self) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(self._update.iterations), tf.int64)

    def train(self, loop: Loop) -> None:
        # The step is bound to the device by its variables; inputs are copied there beforehand.
        with self._placement():
            for epoch in loop.epochs():
                for batch in epoch.batches():
                    start = time.perf_counter()
                    arguments = self._arguments(batch)
                    copied = time.perf_counter() - start
                    loss = self._step(*arguments)
                    self._steps += 1
                    loop.step_done(loss, copy_seconds=copied)
                self._tell_skipped()

    def _tell_skipped(self) -> None:
        """Says how many steps float16 has cost; nothing is left out silently."""
        skipped = self.skipped_updates()
        if skipped > self._skipped:
            _log.warning("%d of %d steps left out: a gradient overflowed float16, the loss is scaled by %g now",
                         skipped, self._steps, float(self._scale.scale.numpy()))
            self._skipped = skipped

    def _placement(self) -> Any:
        # Copies of the network get their rows from the host.
        return tf.device("/CPU:0" if self._replicas is not None else self._device)

    def _arguments(self, batch: Batch) -> tuple:
        masks = {name: tf.convert_to_tensor(batch.masks[name], self._dtype) for name in self._masked}
        weight: Tuple[Any, ...] = ()
        if self._execution.ranks.size > 1:
            weight = (self._constant("real", 1.0 if batch.samples else 0.0), self._constant("total", batch.total))
        return (tf.convert_to_tensor(batch.x, self._dtype), tf.convert_to_tensor(batch.labels, tf.int64),
                self._constant("rate", batch.learning_rate), masks, weight)

    def _constant(self, name: str, value: float) -> tf.Tensor:
        """A float64 scalar, made anew only when it changes."""
        known = self._constants.get(name)
        if known is None or known[0] != value:
            known = self._constants[name] = (value, tf.constant(value, tf.float64))
        return known[1]

    def predict(self, x: np.ndarray) -> np.ndarray:
        with tf.device(self._device):
            return np.array(self._logits(tf.convert_to_tensor(x, self._dtype)).numpy())

    def intermediates(self, batch: Batch) -> Intermediates:
        with self._placement():
            x, labels, _, masks, weight = self._arguments(batch)
            share = self._share(x, labels, masks, weight)
            # Scaled as in the step: small gradients would vanish in float16.
            scale = 1.0 if self._scale is None else float(self._scale.scale.numpy())
            while True:
                parts, overflows = self._recorded(share, scale)
                if scale < 1.0 or not overflows:
                    break
                # The step itself will be left out.
                scale /= 2.0
        return together(parts, self._layout, 1 if self._whole else share.rows)

    def _recorded(self, share: Share, scale: float) -> Tuple[List[Intermediates], bool]:
        """What each copy of the network in this process sees, and whether any of all copies overflows float16."""

        def inside(part: Share) -> Tuple[Intermediates, tf.Tensor]:
            found = self._inside(part, scale)
            if self._scale is None:
                return found, tf.constant(0.0)
            every = [*found.output_gradients.values(), *found.gradients.values()]
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in every])
            bad = 1.0 - tf.cast(finite, tf.float32)
            return found, bad if part.add is None else part.add([bad])[0]

        if self._replicas is None:
            found = [inside(share)]
        else:
            # A copy whose share is empty has nothing to show, unless it stands in for the whole process.
            found = self._replicas.run(inside, share)[:share.rows]
        return [part for part, _ in found], bool(float(found[0][1]))

    def _inside(self, share: Share, scale: float) -> Intermediates:
        """The same passes as in training, piece by piece with the same factors, recorded as tensors."""
        parts = [self._inside_piece(piece, scale) for piece in pieces(share, self._pieces)]
        if len(parts) == 1:
            return parts[0]
        return Intermediates(
            tf.add_n([part.loss for part in parts]),
            {name: tf.concat([part.outputs[name] for part in parts], 0) for name in parts[0].outputs},
            {name: tf.concat([part.output_gradients[name] for part in parts], 0) for name in parts[0].output_gradients},
            {name: tf.add_n([part.gradients[name] for part in parts]) for name in parts[0].gradients})

    def _inside_piece(self, share: Share, scale: float) -> Intermediates:
        run = Pass(training=True, masks=share.masks, step=self._iterations(), share=share)

        def losses(logits: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
            loss = mean_cross_entropy(logits, share.labels) if self._whole else loss_sum(logits, share.labels)
            total = loss if self._whole else scaled(loss, share)
            return loss, total if scale == 1.0 else total * scale

        def unscaled(value: tf.Tensor) -> tf.Tensor:
            value = tf.cast(value, self._dtype)
            return value if scale == 1.0 else value / scale

        if self._placed is not None:
            loss, found, gradients = placement.differentiate(
                self._network, self._placed, run, share.x, losses, self._variables)
            gradients = placement.joined({name: gradients[name] for name in self._variables})
            return Intermediates(loss, {name: tf.cast(value, self._dtype) for name, value in run.outputs.items()},
                                 {name: unscaled(found[name]) for name in run.outputs},
                                 {name: unscaled(tf.convert_to_tensor(value)) for name, value in gradients.items()})
        with tf.GradientTape() as tape:
            tape.watch(share.x)
            logits = self._network(share.x, run)
            loss, total = losses(logits)
        names, outputs = list(run.outputs), list(run.outputs.values())
        found = tape.gradient(total, outputs + list(self._variables.values()))
        outputs = [tf.cast(value, self._dtype) for value in outputs]
        found = [unscaled(value) for value in found]
        return Intermediates(loss, dict(zip(names, outputs)), dict(zip(names, found)),
                             dict(zip(self._variables, found[len(outputs):])))

    def parameters(self) -> Arrays:
        return {name: self._layout.to_canonical(name, value)
                for name, value in placement.joined(read_state(self._variables)).items()}

    def load_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        whole = {name: self._layout.to_framework(name, np.asarray(value)) for name, value in parameters.items()}
        write_state(self._variables, {part: value for name in whole for part, value in self._cut(name, whole[name])})

    def _cut(self, name: str, value: np.ndarray) -> List[Tuple[str, np.ndarray]]:
        if self._placed is None:
            return [(name, value)]
        return [(part, found) for part, (_, found) in self._placed.cut(name, value).items()]

    def optimizer_state(self) -> Arrays:
        return {name: self._layout.to_canonical(name.rsplit(".", 1)[0], value)
                for name, value in placement.joined(self._update.canonical_state()).items()}

    def _state_variables(self) -> Dict[str, Any]:
        found = {"parameter/" + name: variable for name, variable in self._variables.items()}
        found.update(("statistics/" + name, variable) for name, variable in self._network.running.items())
        if self._scale is not None:
            found.update(("scale/" + name, variable) for name, variable in self._scale.state_variables().items())
        found.update(("update/" + name, variable) for name, variable in self._update.state_variables().items())
        return found

    def state(self) -> Arrays:
        return placement.joined(read_state(self._state_variables()))

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        write_state(self._state_variables(), dict(
            pair for name, value in state.items() for pair in self._cut_state(name, value)))

    def _cut_state(self, name: str, value: np.ndarray) -> List[Tuple[str, np.ndarray]]:
        kind, _, rest = name.partition("/")
        if self._placed is None or kind not in ("parameter", "update"):
            return [(name, value)]
        parameter, slot = rest, ""
        if kind == "update":
            parameter, _, slot = rest.rpartition(".")
            slot = "." + slot
        if "." not in parameter:
            return [(name, value)]
        return [("%s/%s%s" % (kind, part, slot), found) for part, found in self._cut(parameter, value)]

    def batch_statistics(self, x: np.ndarray) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        run = Pass(training=True, drop=False)
        with tf.device(self._device):
            self._network(tf.convert_to_tensor(x, self._dtype), run)
        return {name: (np.array(mean), np.array(variance)) for name, (mean, variance) in run.statistics.items()}

    def statistics(self) -> Arrays:
        return read_state(self._network.running)

    def load_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        write_state(self._network.running, statistics)

    def fingerprint(self) -> Dict[str, str]:
        return device.fingerprint(self._execution)

    def reduced_bytes(self) -> Optional[int]:
        return self._steps * self._bytes_per_step

    def skipped_updates(self) -> int:
        return self._scale.skipped_steps() if self._scale is not None else 0

    def synchronize(self) -> None:
        device.synchronize(self._device)

    def close(self) -> None:
        # The compiled functions hold the engine and are held by it.
        if self._replicas is not None:
            self._replicas.close()
        self.__dict__.clear()
        gc.collect()

    def allocator_peak_bytes(self) -> Any:
        return device.allocator_peak_bytes(self._device)


def mean_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Mean over the batch of the softmax cross-entropy, from logits (B, K) and labels (B,)."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
