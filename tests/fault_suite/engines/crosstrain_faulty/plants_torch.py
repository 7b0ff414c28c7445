"""Plants in PyTorch: other operations in the network, or another use of ``torch.optim``."""

import contextlib
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import crosstrain_torch.layers as adapter_layers

from .plant import Plant, replaced


def patching(*patches):
    """A plant with patches of the form (holder, attribute, value)."""

    class Patching(Plant):
        @contextlib.contextmanager
        def patched(self):
            with contextlib.ExitStack() as stack:
                for holder, attribute, value in patches:
                    stack.enter_context(replaced(holder, attribute, value))
                yield

    return Patching


def on_loss(function):
    """A plant with another loss: ``function(logits, labels)`` gives a scalar."""
    return patching((functional, "cross_entropy", function))


def on_relu(function):
    """A plant whose ReLU modules compute ``function(x)``."""
    return patching((nn.ReLU, "forward", lambda self, x: function(x)))


def on_max_pool(function):
    """A plant whose max-pool modules compute ``function(x, kernel, stride)``; for pools without padding."""
    return patching((nn.MaxPool2d, "forward", lambda self, x: function(x, self.kernel_size, self.stride)))


_cross_entropy = functional.cross_entropy
_conv2d = functional.conv2d
_linear = functional.linear


def _windows(x, kernel, stride):
    return x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1]).flatten(-2)


class _EveryTie(torch.autograd.Function):
    """Maximum over the last dimension whose gradient goes in full to every maximum."""

    @staticmethod
    def forward(context, values):
        largest = values.amax(-1)
        context.save_for_backward(values, largest)
        return largest

    @staticmethod
    def backward(context, gradient):
        values, largest = context.saved_tensors
        return (values == largest.unsqueeze(-1)) * gradient.unsqueeze(-1)


class _LastTie(torch.autograd.Function):
    """Maximum over the last dimension whose gradient goes to the last maximum."""

    @staticmethod
    def forward(context, values):
        largest = values.amax(-1)
        last = values.shape[-1] - 1 - (values == largest.unsqueeze(-1)).flip(-1).to(torch.uint8).argmax(-1)
        context.save_for_backward(functional.one_hot(last, values.shape[-1]))
        return largest

    @staticmethod
    def backward(context, gradient):
        (chosen,) = context.saved_tensors
        return chosen * gradient.unsqueeze(-1)


def _clipped(logits, labels):
    probabilities = functional.softmax(logits, 1).clamp(1e-7, 1 - 1e-7)
    return functional.nll_loss(probabilities.log(), labels)


class _SaturatedLog(torch.autograd.Function):
    """-log max(p, smallest normal number) with the gradient p - y, both means over the batch."""

    @staticmethod
    def forward(context, logits, labels):
        probabilities = functional.softmax(logits, 1)
        context.save_for_backward(probabilities, labels)
        chosen = probabilities.gather(1, labels[:, None]).clamp(min=torch.finfo(torch.float32).tiny)
        return -chosen.log().mean()

    @staticmethod
    def backward(context, gradient):
        probabilities, labels = context.saved_tensors
        difference = probabilities - functional.one_hot(labels, probabilities.shape[1])
        return gradient * difference / len(labels), None


def _shorter(x, kind):
    if kind != "tf32":
        return x.to(kind).to(x.dtype)
    bits = x.contiguous().view(torch.int32)
    odd = (bits >> 13) & 1
    return ((bits + 0xFFF + odd) >> 13 << 13).view(torch.float32)


def on_products(kind):
    """A plant whose convolutions and dense layers multiply numbers rounded to ``kind``, forward and backward.

    Every product of the backward pass has a rounded gradient and a rounded operand, as with tensor cores.
    """

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, product, x, weight):
            context.product = product
            x, weight = _shorter(x, kind), _shorter(weight, kind)
            context.save_for_backward(x, weight)
            return product(x, weight)

        @staticmethod
        def backward(context, gradient):
            x, weight = (item.detach().requires_grad_() for item in context.saved_tensors)
            with torch.enable_grad():
                result = context.product(x, weight)
            found = torch.autograd.grad(result, (x, weight), _shorter(gradient, kind))
            return (None,) + tuple(found)

    def conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        result = Product.apply(lambda a, b: _conv2d(a, b, None, stride, padding, dilation, groups), x, weight)
        return result if bias is None else result + bias[:, None, None]

    def linear(x, weight, bias=None):
        result = Product.apply(lambda a, b: _linear(a, b), x, weight)
        return result if bias is None else result + bias

    return patching((functional, "conv2d", conv2d), (functional, "linear", linear))


def on_norm(function):
    """A plant with another batch norm in training: ``function(x, mean, variance, epsilon)`` normalises."""

    def normalise(norm, x):
        axes = [0] + list(range(2, x.dim()))
        variance, mean = torch.var_mean(x, dim=axes, correction=0, keepdim=True)
        shape = [1, -1] + [1] * (x.dim() - 2)
        result = function(x, mean, variance, norm.eps)
        return result * norm.weight.reshape(shape) + norm.bias.reshape(shape)

    return patching((adapter_layers, "normalise_by_batch", normalise))


def _unbiased(x, mean, variance, epsilon):
    count = x.numel() // x.shape[1]
    return (x - mean) / torch.sqrt(variance * (count / (count - 1)) + epsilon)


class OnOptimizer(Plant):
    """A plant in the optimizer: :meth:`before` is called with its groups right before every update."""

    def attach(self, engine):
        self._rule = engine._rule
        self._steps = 0
        self._rate = None
        self.prepare(self._rule.optimizer.param_groups)
        inner = self._rule.step

        def step(learning_rate):
            self._steps += 1
            self._rate = learning_rate
            inner(learning_rate)

        self._rule.step = step
        self._rule.optimizer.register_step_pre_hook(lambda *_: self._called())

    def _called(self):
        for group in self._rule.optimizer.param_groups:
            group["lr"] = self._rate
        self.before(self._rule.optimizer.param_groups)

    def prepare(self, groups):
        """Called once."""

    def before(self, groups):
        """Called before every update, learning rates set."""


class Dampening(OnOptimizer):
    """Dampening equal to the momentum."""

    def prepare(self, groups):
        for group in groups:
            group["dampening"] = group["momentum"]


class MomentumMissing(OnOptimizer):
    """A momentum buffer that is cleared before every step."""

    def before(self, groups):
        for state in self._rule.optimizer.state.values():
            state["momentum_buffer"].zero_()


class LookAhead(OnOptimizer):
    """Nesterov's original form: gradients taken where momentum is about to lead, then the plain update of the
    parameters before that.
    """

    def training(self):
        return replace(self.asked_training, rule=replace(self.asked_training.rule, nesterov=False))

    def train(self, engine, loop):
        rule = self._rule
        self._kept = []
        for parameter in rule._all:
            self._kept.append(parameter.detach().clone())
            buffer = rule.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                with torch.no_grad():
                    parameter.sub_(buffer * (rule._rate * rule._momentum))
        engine.train(loop)

    def before(self, groups):
        with torch.no_grad():
            for parameter, value in zip(self._rule._all, self._kept):  # noqa: B905
                parameter.copy_(value)


class EpsilonHat(OnOptimizer):
    """Epsilon beside the uncorrected root."""

    def before(self, groups):
        for group in groups:
            group["eps"] = self.asked_training.rule.epsilon / (1 - group["betas"][1] ** self._steps) ** 0.5


class NoBiasCorrection(OnOptimizer):
    """Adam's averages as they are."""

    def before(self, groups):
        for group in groups:
            first, second = (1 - beta ** self._steps for beta in group["betas"])
            group["lr"] = self._rate * first / second ** 0.5
            group["eps"] = self.asked_training.rule.epsilon / second ** 0.5


class Amsgrad(OnOptimizer):
    """The largest mean square so far in place of the present one."""

    def prepare(self, groups):
        for group in groups:
            group["amsgrad"] = True


class EpsilonInside(Plant):
    """RMSProp or Adagrad with epsilon inside the root."""

    def attach(self, engine):
        rule = self.asked_training.rule
        optimizer = engine._rule.optimizer
        key = {"rmsprop": "square_avg", "adagrad": "sum"}[rule.name]
        kept, taken = (rule.rho, 1 - rule.rho) if rule.name == "rmsprop" else (1.0, 1.0)

        def step():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state[parameter]
                    total = state.setdefault(key, torch.zeros_like(parameter))
                    total.mul_(kept).addcmul_(parameter.grad, parameter.grad, value=taken)
                    parameter.addcdiv_(parameter.grad, (total + rule.epsilon).sqrt(), value=-group["lr"])

        optimizer.step = step


class ClipPerTensor(OnOptimizer):
    """Every gradient clipped by its own norm."""

    def attach(self, engine):
        super().attach(engine)
        limit = self.asked_training.clip_norm

        def clip():
            for parameter in engine._rule._all:
                parameter.grad.mul_(limit / parameter.grad.norm().clamp(min=limit))

        engine._rule._clip = clip


class DecayBeforeClip(OnOptimizer):
    """L2 decay added to the gradients before they are clipped."""

    def attach(self, engine):
        super().attach(engine)
        rule = engine._rule
        inner = rule._clip
        decay = self.asked_training.weight_decay
        for group in rule.optimizer.param_groups:
            group["weight_decay"] = 0.0

        def clip():
            for name, parameter in rule._parameters.items():
                if decay.applies_to(name):
                    parameter.grad.add_(parameter, alpha=decay.rate)
            inner()

        rule._clip = clip


def on_gradients(factor):
    """A plant whose parameters' gradients are all multiplied, as an all-reduce of another kind would do."""

    class OnGradients(Plant):
        def attach(self, engine):
            for parameter in engine._network.trained.values():
                parameter.register_hook(lambda gradient: gradient * factor)

    return OnGradients


class ChannelsLast(Plant):
    """No fault: weights and activations with the channels last in memory."""

    def attach(self, engine):
        engine._network.to(memory_format=torch.channels_last)
        inner = engine._network.forward

        def forward(x, masks=None):
            return inner(x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x, masks)

        engine._network.forward = forward


class PlainKernels(Plant):
    """No fault: PyTorch's own kernels in place of oneDNN's."""

    @contextlib.contextmanager
    def patched(self):
        with torch.backends.mkldnn.flags(enabled=False):
            yield


class AnyOrder(Plant):
    """No fault but no determinism: the samples of a batch in an order that nobody knows, so that sums round
    otherwise in every run.
    """

    def train(self, engine, loop):
        inner = engine._steps.loss

        def loss(x, labels, masks):
            order = torch.from_numpy(np.random.RandomState().permutation(len(x)))
            return inner(x[order], labels[order], {name: mask[order] for name, mask in masks.items()})

        engine._steps.loss = loss
        engine.train(loop)
        engine._steps.loss = inner


def _mean_of_means(logits, labels):
    """The mean of the mean losses of two ranks, the first of which has one sample more of an odd batch."""
    half = (len(labels) + 1) // 2
    parts = [_cross_entropy(logits[:half], labels[:half]), _cross_entropy(logits[half:], labels[half:])]
    return (parts[0] + parts[1]) / 2


PLANTS = {
    "layout.any_order": AnyOrder,
    "loss.mean_of_means": on_loss(_mean_of_means),
    "layout.channels_last": ChannelsLast,
    "layout.plain_kernels": PlainKernels,
    "pool.ties_split": on_max_pool(lambda x, kernel, stride: _windows(x, kernel, stride).amax(-1)),
    "pool.ties_all": on_max_pool(lambda x, kernel, stride: _EveryTie.apply(_windows(x, kernel, stride))),
    "pool.ties_last": on_max_pool(lambda x, kernel, stride: _LastTie.apply(_windows(x, kernel, stride))),
    "relu.half_at_zero": on_relu(lambda x: 0.5 * (x + x.abs())),
    "relu.one_at_zero": on_relu(lambda x: x.clamp(min=0)),
    "batch_norm.unbiased_variance": on_norm(_unbiased),
    "batch_norm.epsilon_outside_root": on_norm(
        lambda x, mean, variance, epsilon: (x - mean) / (torch.sqrt(variance) + epsilon)),
    "loss.clipped_probabilities": on_loss(_clipped),
    "loss.saturated_log": on_loss(_SaturatedLog.apply),
    "loss.summed": on_loss(lambda logits, labels: _cross_entropy(logits, labels, reduction="sum")),
    "loss.double_softmax": on_loss(lambda logits, labels: _cross_entropy(functional.softmax(logits, 1), labels)),
    "precision.bfloat16": on_products(torch.bfloat16),
    "precision.float16": on_products(torch.float16),
    "precision.tf32": on_products("tf32"),
    "gradient.summed_over_ranks.hook": on_gradients(2.0),
    "gradient.divided_twice.hook": on_gradients(0.5),
    "decay.before_clip": DecayBeforeClip,
    "clip.per_tensor": ClipPerTensor,
    "momentum.dampening": Dampening,
    "momentum.missing": MomentumMissing,
    "momentum.lookahead": LookAhead,
    "rmsprop.epsilon_inside": EpsilonInside,
    "adagrad.epsilon_inside": EpsilonInside,
    "adam.epsilon_hat": EpsilonHat,
    "adam.no_bias_correction": NoBiasCorrection,
    "adam.amsgrad": Amsgrad,
}
