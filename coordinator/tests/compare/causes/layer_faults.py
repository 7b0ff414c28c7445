"""Engines with one wrong convention in a layer, written without the table's own formulas."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from compare.problems import conv, pool, problem

from crosstrain.compare.testing import Simulated
from crosstrain_reference import LRN, BatchNorm, Convolution, Dense, Dropout, Flatten, Network, Pool, Relu, Trace
from crosstrain_service import model as plain

Arrays = dict[str, np.ndarray]


def with_fields(layer: Any, **changes: Any) -> Any:
    """A layer with other fields."""
    return dataclasses.replace(layer, **changes)


def as_kind(layer: Any, kind: type, **changes: Any) -> Any:
    """A layer of another class with the same fields."""
    values = {item.name: getattr(layer, item.name) for item in dataclasses.fields(layer)}
    return kind(**{**values, **changes})


def layers(kind: type, make: Any) -> type[Simulated]:
    """An engine with every layer of a kind replaced."""

    class Changed(Simulated):
        def network(self) -> Network:
            return Network([make(layer) if type(layer) is kind else layer for layer in super().network().layers])

    return Changed


class FlippedKernel(Convolution):
    def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
        return super().forward(x, self._turned(params), *rest, **named)

    def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
        dx, gradients = super().backward(dy, trace, self._turned(params))
        return dx, self._turned(gradients)

    def _turned(self, params: Any) -> Arrays:
        name = self.name + ".weight"
        return {**params, name: np.ascontiguousarray(params[name][..., ::-1, ::-1])}


class SwappedKernel(FlippedKernel):
    def _turned(self, params: Any) -> Arrays:
        name = self.name + ".weight"
        return {**params, name: np.ascontiguousarray(params[name].swapaxes(2, 3))}


class TransposedDense(Dense):
    def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
        return super().forward(x, self._turned(params), *rest, **named)

    def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
        dx, gradients = super().backward(dy, trace, self._turned(params))
        return dx, self._turned(gradients)

    def _turned(self, params: Any) -> Arrays:
        name = self.name + ".weight"
        return {**params, name: np.ascontiguousarray(params[name].T)}


class RectifiedDense(Dense):
    def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
        y, trace = super().forward(x, params, *rest, **named)
        return np.maximum(y, np.float32(0)), trace

    def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
        y, _ = super().forward(trace.x, params)
        return super().backward(np.where(y > 0, dy, np.float32(0)), trace, params)


class ChannelsLast(Flatten):
    def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
        y, trace = super().forward(np.ascontiguousarray(np.moveaxis(x, 1, -1)), params, *rest, **named)
        return y, trace

    def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(super().backward(dy, trace, params)[0], -1, 1)), {}


def at_zero(slope: float) -> Any:
    class AtZero(Relu):
        def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
            return np.where(trace.x == 0, dy * dy.dtype.type(slope), super().backward(dy, trace, params)[0]), {}

    return AtZero


class NoRelu(Relu):
    def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
        return x.copy(), Trace(x, True)

    def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
        return dy.copy(), {}


def ties(kind: str) -> Any:
    """A max pool of disjoint windows with another gradient at ties."""

    class Tied(Pool):
        def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
            x = trace.x
            dx = np.zeros_like(x)
            high, wide = self.kernel
            for n, c, i, j in np.ndindex(*dy.shape):
                rows, columns = slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide)
                window = x[n, c, rows, columns]
                best = np.argwhere(window == window.max())
                if kind == "last":
                    best = best[-1:]
                share = dy[n, c, i, j] / np.float32(len(best) if kind == "split" else 1)
                for a, b in best:
                    dx[n, c, i * high + a, j * wide + b] += share
            return dx, {}

    return Tied


def own_norm(kind: str) -> Any:
    """Batch norm with another denominator; gradients by the chain rule, in float64."""

    class Other(BatchNorm):
        def _parts(self, x: np.ndarray) -> Any:
            axes = (0, *range(2, x.ndim))
            wide = x.astype(np.float64)
            count = x.size // x.shape[1]
            mean = wide.mean(axis=axes, keepdims=True)
            centred = wide - mean
            spread = (centred**2).sum(axis=axes, keepdims=True) / (count - 1 if kind == "unbiased" else count)
            if kind == "unbiased":
                return axes, centred, np.sqrt(spread + self.eps), centred / (count - 1) / np.sqrt(spread + self.eps)
            return axes, centred, np.sqrt(spread) + self.eps, centred / count / np.sqrt(spread)

        def forward(self, x: np.ndarray, params: Any, train: bool = True, *rest: Any, **named: Any) -> Any:
            y, trace = super().forward(x, params, train, *rest, **named)
            if not train:
                return y, trace
            _, centred, root, _ = self._parts(x)
            shape = (1, -1, *[1] * (x.ndim - 2))
            gamma, beta = (params[f"{self.name}.{part}"].reshape(shape) for part in ("gamma", "beta"))
            return (gamma * centred / root + beta).astype(x.dtype), trace

        def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
            axes, centred, root, slope = self._parts(trace.x)
            gamma = params[self.name + ".gamma"].reshape(root.shape).astype(np.float64)
            through = gamma * dy
            direct = (through - through.mean(axis=axes, keepdims=True)) / root
            dx = direct - slope * (through * centred).sum(axis=axes, keepdims=True) / root**2
            return dx.astype(dy.dtype), {
                self.name + ".gamma": (dy * centred / root).sum(axis=axes).astype(dy.dtype),
                self.name + ".beta": dy.sum(axis=axes),
            }

    return Other


class EvaluationNorm(BatchNorm):
    def forward(self, x: np.ndarray, params: Any, train: bool = True, mask: Any = None, statistics: Any = None) -> Any:
        if train:
            statistics = (np.zeros(x.shape[1], x.dtype), np.ones(x.shape[1], x.dtype))
        return super().forward(x, params, False, mask, statistics)


def masked(change: Any) -> Any:
    """A dropout that changes the platform's mask; ``change`` gets (mask, rate)."""

    class Other(Dropout):
        def forward(self, x: np.ndarray, params: Any, train: bool = True, mask: Any = None, *rest: Any) -> Any:
            if train and mask is not None:
                mask = change(mask, self.rate).astype(x.dtype)
            return super().forward(x, params, train, mask)

    return Other


def _own(mask: np.ndarray, rate: float) -> np.ndarray:
    return (np.random.RandomState(99).uniform(size=mask.shape) >= rate) / (1 - rate)


def short(bits: int, float16: bool = False) -> Any:
    """Convolutions and dense layers whose operands have fewer bits, rounded by integer arithmetic."""

    def cut(value: np.ndarray) -> np.ndarray:
        if float16:
            return value.astype(np.float16).astype(np.float32)
        drop = 24 - bits
        raw = value.astype(np.float32).view(np.uint32).astype(np.uint64)
        raw = (raw + (1 << (drop - 1)) - 1 + ((raw >> drop) & 1)) >> drop << drop
        return raw.astype(np.uint32).view(np.float32)

    def make(kind: type) -> Any:
        class Short(kind):  # type: ignore[misc, valid-type]
            def _cut(self, params: Any) -> Any:
                name = self.name + ".weight"
                return {**params, name: cut(params[name])}

            def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
                y, _ = super().forward(cut(x), self._cut(params), *rest, **named)
                return y, Trace(x, True)

            def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
                return super().backward(cut(dy), trace._replace(x=cut(trace.x)), self._cut(params))

        return Short

    kinds = {Convolution: make(Convolution), Dense: make(Dense)}

    class Changed(Simulated):
        def network(self) -> Network:
            found = super().network().layers
            return Network([as_kind(item, kinds[type(item)]) if type(item) in kinds else item for item in found])

    return Changed


FIRST = conv("conv", 2, 3, 1, 1)
TIED = np.zeros((6, 1, 6, 6), np.float32)
TIED[1::2, 0, :2, :4] = 2.0
TIED[::3, 0, 3, 1:5] = [1.0, 2.0, 2.0, 1.0]
IDENTITY = {"conv.weight": [[[[1.0]]]], "conv.bias": 0.0}
TIES = problem((1, 6, 6), [conv("conv", 1, 1), pool("pool", "max", 2, 2)], pixels=TIED, initial=IDENTITY)
HALF_BLANK = np.random.RandomState(2).uniform(-1, 1, (6, 1, 4, 4)) * (np.arange(6) % 2).reshape(6, 1, 1, 1)
BLANK = problem((1, 4, 4), [FIRST, plain.Relu("relu")], pixels=HALF_BLANK, biases=False)
DROPPED = problem(
    (1, 3, 4),
    [plain.Flatten("flatten"), plain.Dense("dense", 9), plain.Dropout("drop", 0.25), plain.Dense("logits", 3)],
    samples=8, batch=4,
)  # fmt: skip
NORM = problem((2, 4, 4), [conv("conv", 3, 3), plain.BatchNorm("norm", 1e-3), plain.Relu("relu")], samples=8, batch=4)
RESPONSE = problem(
    (1, 4, 5),
    [conv("conv", 7, 3, 1, 1), plain.LocalResponseNorm("lrn", 5, 0.3, 0.75, 2.0)], scale=3.0,
)  # fmt: skip
AVERAGE = problem((1, 5, 5), [FIRST, pool("pool", "average", 3, 1, 1)])
INCLUDED = problem((1, 5, 5), [FIRST, pool("pool", "average", 3, 1, 1, include=True)])
STRIDED = problem((1, 6, 8), [conv("conv", 2, 3, 2, 0, 1)])
POOLED = problem((1, 7, 7), [FIRST, pool("pool", "max", 3, 2, 1)])
PLAIN = problem((2, 5, 4), [conv("conv", 3, 3), plain.Relu("relu")])

FAULTS: dict[str, tuple[Any, Any]] = {
    "convolution.kernel_flipped": (PLAIN, layers(Convolution, lambda x: as_kind(x, FlippedKernel))),
    "convolution.padding_shifted": (
        STRIDED, layers(Convolution, lambda x: with_fields(x, pad_begin=x.pad_end, pad_end=x.pad_begin))),
    "weights.kernel_transposed": (PLAIN, layers(Convolution, lambda x: as_kind(x, SwappedKernel))),
    "precision.tf32": (PLAIN, short(11)),
    "precision.bfloat16": (PLAIN, short(8)),
    "precision.float16": (problem((2, 5, 4), [conv("conv", 3, 3), plain.Relu("relu")], scale=1e-4), short(11, True)),
    "pool.ceil_for_floor": (
        problem((1, 6, 6), [FIRST, pool("pool", "max", 3, 2)]), None),
    "pool.floor_for_ceil": (problem((1, 6, 6), [FIRST, pool("pool", "max", 3, 2, ceil=True)]), None),
    "pool.origin_shifted": (
        problem((1, 6, 6), [FIRST, pool("pool", "max", 2, 2)]),
        layers(Pool, lambda x: with_fields(x, pad_begin=(1, 1), pad_end=(0, 0)))),
    "pool.average_for_max": (POOLED, layers(Pool, lambda x: with_fields(x, kind="average"))),
    "pool.max_for_average": (AVERAGE, layers(Pool, lambda x: with_fields(x, kind="max"))),
    "pool.divisor_counts_padding": (AVERAGE, layers(Pool, lambda x: with_fields(x, count_include_pad=True))),
    "pool.divisor_excludes_padding": (INCLUDED, layers(Pool, lambda x: with_fields(x, count_include_pad=False))),
    "pool.ties_all": (TIES, layers(Pool, lambda x: as_kind(x, ties("all")))),
    "pool.ties_last": (TIES, layers(Pool, lambda x: as_kind(x, ties("last")))),
    "pool.ties_split": (TIES, layers(Pool, lambda x: as_kind(x, ties("split")))),
    "relu.half_at_zero": (BLANK, layers(Relu, lambda x: at_zero(0.5)(x.name))),
    "relu.one_at_zero": (BLANK, layers(Relu, lambda x: at_zero(1.0)(x.name))),
    "relu.missing": (PLAIN, layers(Relu, lambda x: NoRelu(x.name))),
    "dense.rectified": (
        problem((1, 3, 4), [plain.Flatten("flatten"), plain.Dense("dense", 6), plain.Dense("logits", 3)]),
        layers(Dense, lambda x: as_kind(x, RectifiedDense) if x.name == "dense" else x)),
    "dense.rows_permuted_hwc": (PLAIN, layers(Flatten, lambda x: ChannelsLast(x.name))),
    "dense.transposed": (
        problem((1, 3, 2), [plain.Flatten("flatten"), plain.Dense("dense", 6), plain.Dense("logits", 3)]),
        layers(Dense, lambda x: as_kind(x, TransposedDense) if x.name == "dense" else x)),
    "dropout.rate_inverted": (
        DROPPED, layers(Dropout, lambda x: masked(lambda m, rate: (m == 0) / rate)(x.name, x.rate))),
    "dropout.not_rescaled": (DROPPED, layers(Dropout, lambda x: masked(lambda m, _: m > 0)(x.name, x.rate))),
    "dropout.off": (DROPPED, layers(Dropout, lambda x: masked(lambda m, _: np.ones_like(m))(x.name, x.rate))),
    "dropout.own_mask": (DROPPED, layers(Dropout, lambda x: masked(_own)(x.name, x.rate))),
    "batch_norm.unbiased_variance": (NORM, layers(BatchNorm, lambda x: own_norm("unbiased")(x.name, x.eps))),
    "batch_norm.epsilon_outside_root": (NORM, layers(BatchNorm, lambda x: own_norm("outside")(x.name, x.eps))),
    "batch_norm.other_epsilon": (NORM, layers(BatchNorm, lambda x: BatchNorm(x.name, 1e-5))),
    "batch_norm.evaluation_mode": (NORM, layers(BatchNorm, lambda x: EvaluationNorm(x.name, x.eps))),
    "lrn.alpha_over_n": (RESPONSE, layers(LRN, lambda x: with_fields(x, alpha=x.alpha / x.size))),
    "lrn.other_k": (RESPONSE, layers(LRN, lambda x: with_fields(x, k=1.0))),
    "lrn.other_window": (RESPONSE, layers(LRN, lambda x: with_fields(x, size=3))),
    "lrn.other_region": (RESPONSE, layers(LRN, lambda x: with_fields(x, region="within_channel"))),
}  # fmt: skip


class _OtherShape(Simulated):
    """An engine whose pools have another number of windows, and whose dense weight fits that by chance."""

    mode = "ceil"

    def network(self) -> Network:
        found = super().network().layers
        return Network([with_fields(item, round_mode=self.mode) if isinstance(item, Pool) else item for item in found])

    def records(self) -> dict[int, Arrays]:
        net = self.network()
        params = {name: self.typed(value) for name, value in self.problem.initial.items()}
        size = int(np.prod(net.output_shapes(self.problem.model.input_shape)["flatten"]))
        random = np.random.RandomState(0)
        other = {**params, "logits.weight": self.typed(random.uniform(-1, 1, (3, size)))}
        x = self.typed(self.problem.data.inputs(self.rows(0)))
        labels = self.problem.data.labels[self.rows(0)]
        result = net.loss_and_gradients(x, labels, other)
        record = {
            "input": x, "labels": labels, "learning_rate": np.float64(self.problem.training.learning_rates[0]),
            "loss": np.float64(result.loss), "probe_loss": np.float64(result.loss),
        }  # fmt: skip
        for name, value in params.items():
            record[f"parameter/{name}"] = record[f"parameter_after/{name}"] = value
            record[f"gradient/{name}"] = np.zeros_like(value)
        record.update({f"output/{name}": value for name, value in result.forward.outputs.items()})
        record.update({f"output_grad/{name}": value for name, value in result.backward.outputs.items()})
        return {0: record}


class _Floored(_OtherShape):
    mode = "floor"


FAULTS["pool.ceil_for_floor"] = (FAULTS["pool.ceil_for_floor"][0], _OtherShape)
FAULTS["pool.floor_for_ceil"] = (FAULTS["pool.floor_for_ceil"][0], _Floored)
