"""Plants that work with every engine, made of what its interface passes on."""

from dataclasses import replace

import numpy as np

from crosstrain_service.engine import Batch, Intermediates
from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    LocalResponseNorm,
    Pool,
    Relu,
)
from crosstrain_service.training import Rule

from .plant import Plant, changed_layers, map_outputs
from .rounding import to_bfloat16, to_tf32


def on_input(change):
    """A plant that changes the input of training and prediction."""

    class OnInput(Plant):
        def batch(self, batch):
            return replace(batch, x=np.ascontiguousarray(change(batch.x)))

        def predict(self, engine, x):
            return engine.predict(np.ascontiguousarray(change(x)))

    return OnInput


def on_batch(change):
    """A plant that changes the batch; ``change(plant, batch)`` gives the new one."""

    class OnBatch(Plant):
        def batch(self, batch):
            return change(self, batch)

    return OnBatch


def on_labels(change):
    """A plant that changes the labels (B,), given the number of classes."""
    return on_batch(lambda plant, batch: replace(batch, labels=change(batch.labels, plant.asked.classes)))


def on_layers(kind, change):
    """A plant whose engine is built with ``change(layer)`` for every layer of one kind."""

    class OnLayers(Plant):
        def model(self):
            return changed_layers(self.asked, lambda layer: change(layer) if isinstance(layer, kind) else layer)

    return OnLayers


def on_training(**changes):
    """A plant whose engine is built with other settings; a function is given the old value."""

    class OnTraining(Plant):
        def training(self):
            values = {name: value(getattr(self.asked_training, name)) if callable(value) else value
                      for name, value in changes.items()}
            return replace(self.asked_training, **values)

    return OnTraining


def on_rule(**changes):
    """A plant whose engine has other constants of the update rule."""
    return on_training(rule=lambda rule: replace(rule, **changes))


def on_decay(**changes):
    """A plant whose engine decays otherwise; a function is given the old value."""

    def change(decay):
        return replace(decay, **{
            name: value(getattr(decay, name)) if callable(value) else value for name, value in changes.items()})

    return on_training(weight_decay=change)


def on_kernels(change):
    """A plant that gives every convolution kernel, (O, I, H, W), changed by an involution."""
    return on_weights(Convolution, change)


def on_weights(kind, change):
    """A plant that gives the weights of one kind of layer changed by an involution."""

    class OnWeights(Plant):
        def give(self, name, value):
            layer, part = name.rsplit(".", 1)
            chosen = {item.name for item in self.asked.layers_of(kind)}
            return change(value) if layer in chosen and part == "weight" else value

        take = give

    return OnWeights


class RowsPermuted(Plant):
    """Features flattened in the order H, W, C as if they came in the order C, H, W."""

    def _order(self, name):
        inputs = self.asked.input_shapes()
        below = None
        for layer in self.asked.layers:
            if isinstance(layer, Flatten):
                below = inputs[layer.name]
            elif isinstance(layer, Dense):
                if below is not None and name == layer.name + ".weight":
                    axes = tuple(range(1, len(below))) + (0,)
                    return np.arange(int(np.prod(below))).reshape(below).transpose(axes).ravel()
                below = None
        return None

    def give(self, name, value):
        order = self._order(name)
        return value if order is None else value[:, order]

    def take(self, name, value):
        order = self._order(name)
        return value if order is None else value[:, np.argsort(order)]


class OtherInitial(Plant):
    """Weights drawn by the engine itself."""

    def give(self, name, value):
        if not name.endswith(".weight"):
            return value
        limit = np.sqrt(3.0 / value[0].size)
        return np.random.RandomState(len(name)).uniform(-limit, limit, value.shape).astype(value.dtype)


class CeilPool(Plant):
    """Pooling rounded up. Weights of the dense layer above get zeros for the values that are too many."""

    def model(self):
        return changed_layers(
            self.asked, lambda layer: replace(layer, round_mode="ceil") if isinstance(layer, Pool) else layer)

    def _shapes(self, name):
        last = None
        for layer in self.asked.layers:
            if isinstance(layer, Flatten):
                last = layer.name
            elif isinstance(layer, Dense):
                if last and name == layer.name + ".weight":
                    return self.asked.input_shapes()[last], self.model().input_shapes()[last]
                last = None
        return None

    def give(self, name, value):
        shapes = self._shapes(name)
        if shapes is None:
            return value
        small, large = shapes
        result = np.zeros((len(value),) + large, value.dtype)
        result[(slice(None),) + tuple(slice(size) for size in small)] = value.reshape((-1,) + small)
        return result.reshape(len(value), -1)

    def take(self, name, value):
        shapes = self._shapes(name)
        if shapes is None:
            return value
        small, large = shapes
        whole = value.reshape((-1,) + large)
        return whole[(slice(None),) + tuple(slice(size) for size in small)].reshape(len(value), -1)


class ReluMissing(Plant):
    """A ReLU left out: dropout that keeps everything stands in its place."""

    def model(self):
        self._left_out = self.asked.layers_of(Relu)[-1].name
        return changed_layers(
            self.asked, lambda layer: Dropout(layer.name, 0.0) if layer.name == self._left_out else layer)

    def batch(self, batch):
        shape = self.asked.output_shapes()[self._left_out]
        masks = dict(batch.masks)
        masks[self._left_out] = np.ones((len(batch.x),) + shape, batch.x.dtype)
        return replace(batch, masks=masks)


class Rectified(Plant):
    """ReLU after the last dense layer, as a default nonlinearity would put it there."""

    _ADDED = "default_nonlinearity"

    def model(self):
        last = self.asked.layers[-1].name
        return changed_layers(
            self.asked, lambda layer: [layer, Relu(self._ADDED)] if layer.name == last else layer)

    def inside(self, found):
        last = self.asked.layers[-1].name

        def change(table):
            kept = {name: value for name, value in table.items() if name != self._ADDED}
            kept[last] = table[self._ADDED]
            return kept

        return map_outputs(found, change)


def _mask_plant(change):
    """A plant with other dropout masks; ``change(layer, index, mask, plant, batch)`` gives the new one."""

    def masks(plant, batch):
        layers = plant.asked.layers_of(Dropout)
        return replace(batch, masks={
            layer.name: change(layer, index, batch.masks[layer.name], plant, batch)
            for index, layer in enumerate(layers)})

    return on_batch(masks)


def _inverted(layer, index, mask, plant, batch):
    draws = np.random.RandomState([plant.asked_training.seed, batch.step, index]).random_sample(mask.shape)
    return ((draws >= 1 - layer.rate) / layer.rate).astype(mask.dtype)


def _own(layer, index, mask, plant, batch):
    draws = np.random.RandomState([plant.asked_training.seed + 1, batch.step, index]).random_sample(mask.shape)
    return ((draws >= layer.rate) / (1 - layer.rate)).astype(mask.dtype)


class PreviousRate(Plant):
    """The learning rate of the step before: the schedule is advanced after the update instead of before."""

    def rate(self, step, rate):
        return float(self.asked_training.learning_rates[max(0, step - 1)])


class FirstEpochAgain(Plant):
    """Every epoch has the batches of the first one, as without ``set_epoch``; all steps must be recorded."""

    def __init__(self, model, training):
        super().__init__(model, training)
        self._epoch = {}

    def batch(self, batch):
        # The suite's data sets make three steps an epoch.
        kept = self._epoch.setdefault(batch.step % 3, batch)
        return replace(kept, step=batch.step, learning_rate=batch.learning_rate)


class RateScaled(Plant):
    """The learning rate multiplied by the number of ranks."""

    def rate(self, step, rate):
        return 2 * rate


class Penalised(Plant):
    """The reported loss of a step includes the penalty of weight decay, half the rate times the sum of squares."""

    def train(self, engine, loop):
        decay = self.asked_training.weight_decay
        self._penalty = 0.5 * decay.rate * sum(
            float(np.sum(np.square(value.astype(np.float64))))
            for name, value in engine.parameters().items() if decay.applies_to(name))
        engine.train(loop)

    def loss(self, engine, batch, loss):
        return float(loss) + self._penalty


class LossAfterUpdate(Plant):
    """The reported loss is computed after the update."""

    def loss(self, engine, batch, loss):
        return engine.intermediates(batch).loss


class DropoutInEvaluation(Plant):
    """Dropout stays on in evaluation."""

    def predict(self, engine, x):
        random = np.random.RandomState(5)
        shapes = self.asked.input_shapes()
        masks = {layer.name: ((random.random_sample((len(x),) + shapes[layer.name]) >= layer.rate)
                              / (1 - layer.rate)).astype(x.dtype)
                 for layer in self.asked.layers_of(Dropout)}
        batch = Batch(0, x, np.zeros(len(x), np.int64), 0.0, masks)
        return engine.intermediates(batch).outputs[self.asked.layers[-1].name]


class StatisticsOfBatch(Plant):
    """Evaluation normalises with the statistics of the evaluated batch."""

    def predict(self, engine, x):
        found = engine.batch_statistics(x)
        statistics = {}
        for name, (mean, variance) in found.items():
            statistics[name + ".running_mean"], statistics[name + ".running_var"] = mean, variance
        kept = engine.statistics()
        engine.load_statistics(statistics)
        logits = engine.predict(x)
        engine.load_statistics(kept)
        return logits


class InverseDeviation(Plant):
    """Running averages of the mean and of 1 / sqrt(variance + epsilon) are used for evaluation, as Lasagne's
    layer does.
    """

    def __init__(self, model, training):
        super().__init__(model, training)
        self._mean, self._inverse = {}, {}

    def recorded(self, engine, batch):
        self._average(engine.batch_statistics(batch.x))

    def _average(self, found):
        for layer in self.asked.layers_of(BatchNorm):
            mean, variance = (value.astype(np.float64) for value in found[layer.name])
            inverse = 1 / np.sqrt(variance + layer.epsilon)
            for table, value, start in ((self._mean, mean, 0.0), (self._inverse, inverse, 1.0)):
                table[layer.name] = layer.momentum * table.get(layer.name, start) + (1 - layer.momentum) * value

    def load_statistics(self, engine, statistics):
        used = dict(statistics)
        for layer in self.asked.layers_of(BatchNorm):
            dtype = statistics[layer.name + ".running_mean"].dtype
            used[layer.name + ".running_mean"] = self._mean[layer.name].astype(dtype)
            used[layer.name + ".running_var"] = (self._inverse[layer.name] ** -2 - layer.epsilon).astype(dtype)
        engine.load_statistics(used)


class Native(Plant):
    """The framework's own conventions, with its own evaluation statistics."""

    native = True

    def batch_statistics(self, engine, x):
        shapes = self.asked.statistics_shapes()
        return {layer.name: (np.zeros(shapes[layer.name + ".running_mean"], x.dtype),) * 2
                for layer in self.asked.layers_of(BatchNorm)}

    def load_statistics(self, engine, statistics):
        pass


class NativeUnsetBeta(Native):
    """Native Adam whose beta1 was left unset."""

    def training(self):
        return replace(self.asked_training, rule=replace(self.asked_training.rule, beta1=None))


class OtherRule(Plant):
    """RMSProp with Keras's defaults, the default rule of Keras's ``compile``."""

    def training(self):
        return replace(self.asked_training, rule=Rule("rmsprop", rho=0.9, epsilon=1e-7))


class Summed(Plant):
    """Gradients of two ranks with equal shards added up instead of averaged."""

    factor = 2.0

    def inside(self, found):
        scaled = {name: value * value.dtype.type(self.factor) for name, value in found.gradients.items()}
        return Intermediates(found.loss, found.outputs, found.output_gradients, scaled)

    def rate(self, step, rate):
        # Plain SGD: a gradient times two is a rate times two.
        return rate * self.factor


class DividedTwice(Summed):
    """Gradients divided by the number of ranks once more than needed."""

    factor = 0.5


def _shifted(layer):
    """Pool windows that start one element earlier."""
    return replace(layer, pad_begin=tuple(value + 1 for value in layer.pad_begin))


def _swapped_pads(layer):
    return replace(layer, pad_begin=layer.pad_end, pad_end=layer.pad_begin)


def _symmetric(layer):
    return replace(layer, pad_begin=layer.pad_end)


def _kind(kind):
    return lambda layer: replace(layer, kind=kind)


PLANTS = {
    "input.scale_255": on_input(lambda x: x * x.dtype.type(255)),
    "input.channel_order": on_input(lambda x: x[:, ::-1]),
    "input.spatial_transposed": on_input(lambda x: np.swapaxes(x, 2, 3)),
    "input.rounded_bfloat16": on_input(to_bfloat16),
    "input.rounded_tf32": on_input(to_tf32),
    "input.labels_off_by_one": on_labels(lambda labels, classes: labels + 1),
    "input.labels_off_by_one.down": on_labels(lambda labels, classes: labels - 1),
    "input.labels_off_by_one.around": on_labels(lambda labels, classes: (labels + 1) % classes),
    "input.other_rows.every_epoch": FirstEpochAgain,
    "weights.other_initial": OtherInitial,
    "weights.kernel_transposed": on_kernels(lambda kernel: np.swapaxes(kernel, 2, 3)),
    "convolution.kernel_flipped": on_kernels(lambda kernel: kernel[:, :, ::-1, ::-1]),
    "convolution.padding_shifted": on_layers(Convolution, _swapped_pads),
    "convolution.padding_shifted.symmetric": on_layers(Convolution, _symmetric),
    "pool.ceil_for_floor": CeilPool,
    "pool.origin_shifted": on_layers(Pool, _shifted),
    "pool.average_for_max": on_layers(Pool, _kind("average")),
    "pool.max_for_average": on_layers(Pool, _kind("max")),
    "pool.divisor_counts_padding": on_layers(Pool, lambda layer: replace(layer, count_include_pad=True)),
    "pool.divisor_excludes_padding": on_layers(Pool, lambda layer: replace(layer, count_include_pad=False)),
    "relu.missing": ReluMissing,
    "dense.rows_permuted_hwc": RowsPermuted,
    "dense.transposed": on_weights(Dense, lambda weight: weight.T if weight.shape[0] == weight.shape[1] else weight),
    "dense.rectified": Rectified,
    "dropout.rate_inverted": _mask_plant(_inverted),
    "dropout.not_rescaled": _mask_plant(lambda layer, index, mask, plant, batch: (mask > 0).astype(mask.dtype)),
    "dropout.off": _mask_plant(lambda layer, index, mask, plant, batch: np.ones_like(mask)),
    "dropout.own_mask": _mask_plant(_own),
    "batch_norm.other_epsilon": on_layers(BatchNorm, lambda layer: replace(layer, epsilon=1e-3)),
    "batch_norm.inverse_deviation": InverseDeviation,
    "lrn.alpha_over_n": on_layers(
        LocalResponseNorm, lambda layer: replace(layer, alpha_sum=layer.alpha_sum / layer.size)),
    "lrn.other_k": on_layers(LocalResponseNorm, lambda layer: replace(layer, k=2.0)),
    "lrn.other_window": on_layers(LocalResponseNorm, lambda layer: replace(layer, size=layer.size - 2)),
    "loss.includes_penalty": Penalised,
    "loss.after_update": LossAfterUpdate,
    "gradient.summed_over_ranks": Summed,
    "gradient.divided_twice": DividedTwice,
    "decay.doubled": on_decay(rate=lambda rate: 2 * rate),
    "decay.halved": on_decay(rate=lambda rate: rate / 2),
    "decay.decoupled": on_decay(decoupled=True),
    "decay.coupled": on_decay(decoupled=False),
    "decay.biases_included": on_decay(include_biases=True),
    "decay.biases_excluded": on_decay(include_biases=False),
    "decay.missing": on_training(weight_decay=None),
    "clip.missing": on_training(clip_norm=0.0),
    "momentum.nesterov": on_rule(nesterov=True),
    "momentum.no_nesterov": on_rule(nesterov=False),
    "adagrad.initial_accumulator": on_rule(initial_accumulator=0.1),
    "adam.beta1_zero": on_rule(beta1=0.0),
    "adam.beta1_zero.native": NativeUnsetBeta,
    "optimizer.other_constant.rho": on_rule(rho=0.99),
    "optimizer.other_constant.beta2": on_rule(beta2=0.99),
    "optimizer.other_constant.epsilon": on_rule(epsilon=1e-3),
    "optimizer.other_rule": OtherRule,
    "rate.previous_step": PreviousRate,
    "rate.scaled": RateScaled,
    "evaluation.dropout_on": DropoutInEvaluation,
    "evaluation.batch_statistics": StatisticsOfBatch,
    "native": Native,
}
