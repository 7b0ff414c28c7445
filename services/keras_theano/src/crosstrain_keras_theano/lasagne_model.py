"""A Lasagne network, in canonical or native semantics.

Canonical: Lasagne's layers for convolution and dense, each nonlinearity named (Lasagne's default is ReLU),
and layers of our own for ReLU, pooling, dropout by given masks and batch norm.

Native: Lasagne's layers as its users write them (rectify, whose gradient at 0 is 0.5; MaxPool2DLayer, which
sends the gradient to every tied maximum; DropoutLayer; LocalResponseNormalization2DLayer; softmax at the
end). Batch norm, which Lasagne 0.1 lacks, is Theano's with Theano's defaults: epsilon 1e-4, weight 0.1 on the
new value of the running averages, unbiased variance. Padding and rounding that Lasagne cannot express are
Theano's operations.
"""

from collections import OrderedDict
from typing import Any, Dict, Optional

from crosstrain_service import model as spec
from crosstrain_service.training import Execution, Training

from . import operations
from .device import T, theano
from .lasagne_layers import BatchNormLayer, Expression, MaskLayer, PaddedConv2DLayer, lasagne, seed
from .model import DenseLayout, KernelLayout, Layout, Network, Stored
from .ranks import Team

Variable = Any

#: A native batch norm's constants where the model leaves them open (Theano's own).
_DEFAULT_EPSILON, _DEFAULT_MOMENTUM = 1e-4, 0.9


class LasagneNetwork(Network):
    """The network's variables, and Lasagne's layers by name (``layers``).

    ``updates``: new values of native running averages, to be made in every training step.
    """

    def __init__(
        self, model: spec.Model, training: Training, execution: Execution, team: Optional[Team] = None
    ) -> None:
        super().__init__()
        self._team = team
        self._spec = model
        self._native = execution.native
        self._inputs = model.input_shapes()
        self._shapes = model.output_shapes()
        seed(training.seed)
        self.x = _tensor(model.input_shape, "x")
        self.labels = T.lvector("labels")
        for layer in model.layers_of(spec.Dropout) if not self._native else ():
            self.masks[layer.name] = _tensor(self._inputs[layer.name], "mask of " + layer.name)
        self.layers: Dict[str, Any] = OrderedDict()
        self._build_all()
        self._apply()
        self.updates = [update for layer in self._norms().values() for update in layer.updates]
        self.penalty = self._penalty(training)

    def _build_all(self) -> None:
        below = lasagne.layers.InputLayer((None,) + self._spec.input_shape, self.x)
        for layer in self._spec.layers:
            below = self._build(layer, below)
            self.layers[layer.name] = below
            self._store(layer, below)
        self.final = below

    def _norms(self) -> Dict[str, BatchNormLayer]:
        return OrderedDict((layer.name, self.layers[layer.name]) for layer in self._spec.layers_of(spec.BatchNorm))

    def _apply(self) -> None:
        """Sets outputs, loss, logits and moments from Lasagne's expressions."""
        outputs = lasagne.layers.get_output(list(self.layers.values()), deterministic=False)
        self.outputs.update((name, (output, Layout())) for name, output in zip(self.layers, outputs))
        if self._native:
            probabilities = lasagne.nonlinearities.softmax(outputs[-1])
            self.loss = lasagne.objectives.categorical_crossentropy(probabilities, self.labels).mean()
        else:
            self.loss = operations.cross_entropy(outputs[-1], self.labels).mean()
        depends = self._spec.layers_of(spec.BatchNorm) + self._spec.layers_of(spec.Dropout)
        self.logits = lasagne.layers.get_output(self.final, deterministic=True) if depends else outputs[-1]
        if self._norms() and not self._native:
            lasagne.layers.get_output(self.final, deterministic=True, batch_statistics=True)
            self.moments.update((name, layer.moments + (Layout(),)) for name, layer in self._norms().items())

    def _penalty(self, training: Training) -> Optional[Variable]:
        """Lasagne's l2 (rate times the sum of squares), in native semantics only."""
        decay = training.weight_decay
        if not self._native or decay is None or not decay.rate or decay.decoupled:
            return None
        decayed = [stored.variable for name, stored in self.parameters.items() if decay.applies_to(name)]
        return decay.rate * lasagne.regularization.apply_penalty(decayed, lasagne.regularization.l2)

    def _build(self, layer: spec.Layer, below: Any) -> Any:
        shape, result = self._inputs[layer.name], self._shapes[layer.name]
        if isinstance(layer, spec.Convolution):
            return self._convolution(layer, below, shape, result)
        if isinstance(layer, spec.Pool):
            return self._pool(layer, below, shape, result)
        if isinstance(layer, spec.Dense):
            return lasagne.layers.DenseLayer(below, layer.units, nonlinearity=None, **_bias(layer))
        if isinstance(layer, spec.Relu):
            if self._native:
                return lasagne.layers.NonlinearityLayer(below, lasagne.nonlinearities.rectify)
            return Expression(below, operations.relu, result)
        if isinstance(layer, spec.Flatten):
            return lasagne.layers.FlattenLayer(below)
        if isinstance(layer, spec.Dropout):
            if self._native:
                return lasagne.layers.DropoutLayer(below, layer.rate)
            return MaskLayer(below, self.masks[layer.name])
        if isinstance(layer, spec.BatchNorm):
            return self._batch_norm(layer, below)
        if isinstance(layer, spec.LocalResponseNorm):
            # Lasagne's layer rounds the squares to float32, whatever the run's type is.
            own = layer.region == "across_channels" and len(shape) == 3 and theano.config.floatX == "float32"
            if self._native and own:
                return lasagne.layers.LocalResponseNormalization2DLayer(
                    below, alpha=layer.alpha_sum, k=layer.k, beta=layer.beta, n=layer.size
                )
            return Expression(below, lambda x: operations.local_response_norm(x, layer, shape[0]), result)
        pads = tuple(zip(layer.begin, layer.end))
        return lasagne.layers.PadLayer(below, [list(pair) for pair in pads], batch_ndim=2)

    def _convolution(self, layer: spec.Convolution, below: Any, shape: Any, result: Any) -> Any:
        pads = tuple(zip(layer.pad_begin, layer.pad_end))
        options = dict(
            num_filters=layer.out_channels,
            filter_size=layer.kernel,
            stride=layer.stride,
            nonlinearity=None,
            **_bias(layer),
        )
        if len(layer.kernel) == 2 and not self._native:
            return PaddedConv2DLayer(below, pads, result, **options)
        kind = lasagne.layers.Conv1DLayer if len(layer.kernel) == 1 else lasagne.layers.Conv2DLayer
        if all(before == after for before, after in pads):
            return kind(below, pad=layer.pad_begin, **options)
        return kind(lasagne.layers.PadLayer(below, [list(pair) for pair in pads], batch_ndim=2), pad=0, **options)

    def _pool(self, layer: spec.Pool, below: Any, shape: Any, result: Any) -> Any:
        pads = operations.pool_pads(layer, shape)
        padded = any(before or after for before, after in pads)
        plain = layer.round_mode == "floor" and layer.pad_begin == layer.pad_end
        if layer.kind == "average":
            # Theano has no gradient of padded averages that leave the padding out.
            if self._native and plain and len(layer.kernel) == 2 and (layer.count_include_pad or not padded):
                mode = "average_inc_pad" if layer.count_include_pad else "average_exc_pad"
                return lasagne.layers.Pool2DLayer(below, layer.kernel, layer.stride, layer.pad_begin, mode=mode)
            if padded:
                return Expression(below, lambda x: operations.average_pool(x, layer, shape), result)
            return Expression(below, lambda x: operations.theano_pool(x, layer, "average_exc_pad"), result)
        if not self._native:
            return Expression(below, lambda x: operations.max_pool(x, layer, shape), result)
        if plain:
            kind = lasagne.layers.MaxPool1DLayer if len(layer.kernel) == 1 else lasagne.layers.MaxPool2DLayer
            return kind(below, layer.kernel, layer.stride, layer.pad_begin)
        return Expression(below, lambda x: operations.theano_max_pool(x, layer, shape), result)

    def _batch_norm(self, layer: spec.BatchNorm, below: Any) -> BatchNormLayer:
        if not self._native:
            moments = operations.batch_moments if self._team is None else self._team.moments
            return BatchNormLayer(below, layer.epsilon, moments=moments)
        return BatchNormLayer(
            below,
            _DEFAULT_EPSILON if layer.epsilon is None else layer.epsilon,
            _DEFAULT_MOMENTUM if layer.momentum is None else layer.momentum,
        )

    def _store(self, layer: spec.Layer, built: Any) -> None:
        if isinstance(layer, (spec.Convolution, spec.Dense)):
            layout = DenseLayout(Layout()) if isinstance(layer, spec.Dense) else KernelLayout()
            self.parameters[layer.name + ".weight"] = Stored(built.W, layout)
            if layer.bias:
                self.parameters[layer.name + ".bias"] = Stored(built.b, Layout())
        elif isinstance(layer, spec.BatchNorm):
            for part, variable in (("gamma", built.gamma), ("beta", built.beta)):
                self.parameters["%s.%s" % (layer.name, part)] = Stored(variable, Layout())
            for part, variable in (("running_mean", built.mean), ("running_var", built.variance)):
                self.statistics["%s.%s" % (layer.name, part)] = Stored(variable, Layout())


def _bias(layer: Any) -> Dict[str, Any]:
    return {} if layer.bias else {"b": None}


def _tensor(shape: Any, name: str) -> Variable:
    """An input (B, *shape) in the run's floating type."""
    return T.TensorType(theano.config.floatX, (False,) * (len(shape) + 1))(name)
