"""A layer's operation that can be wrapped: each wrapper changes one thing about it, forward and backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from crosstrain.compare.numerics import bounds
from crosstrain.compare.numerics.bounds import Arithmetic, Arrays, Bounded
from crosstrain_reference import BatchNorm, Dropout, Layer, Pool, Trace

Gradients = dict[str, Bounded]
Tensor = Callable[[np.ndarray], np.ndarray]


class Settings:
    """What a layer is called with apart from its input."""

    def __init__(
        self,
        params: Arrays,
        arithmetic: Arithmetic,
        mask: np.ndarray | None = None,
        train: bool = True,
        statistics: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.params = params
        self.arithmetic = arithmetic
        self.mask = mask
        self.train = train
        self.statistics = statistics

    def changed(self, **values: Any) -> Settings:
        """The same with other values."""
        return Settings(**{**vars(self), **values})


class Operation:
    """The canonical operation of a layer."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def with_layer(self, layer: Layer) -> Operation:
        """The same operation, wrappers included, of another layer."""
        return Operation(layer)

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        """The output, with its bound."""
        return self._piece(x, settings).output

    def _piece(self, x: Bounded, settings: Settings) -> bounds.Piece:
        return bounds.forward(
            self.layer, x, settings.params, settings.arithmetic, settings.train, settings.mask, settings.statistics
        )

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        """Gradients of input and parameters, with bounds."""
        trace = Trace(x, settings.train)
        if isinstance(self.layer, (BatchNorm, Dropout, Pool)):
            _, trace = self.layer.forward(x, settings.params, settings.train, settings.mask, settings.statistics)
        return bounds.backward(self.layer, dy, trace, settings.params, settings.arithmetic)


class Wrapped(Operation):
    """An operation around another one; wrappers override what they change."""

    def __init__(self, inner: Operation) -> None:
        super().__init__(inner.layer)
        self.inner = inner

    def with_layer(self, layer: Layer) -> Operation:
        new = object.__new__(type(self))
        vars(new).update(vars(self))
        new.inner = self.inner.with_layer(layer)
        new.layer = layer
        return new

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        return self.inner.forward(x, settings)

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        return self.inner.backward(dy, x, settings)


class OtherWeight(Wrapped):
    """The operation with its weight rearranged by ``there``; gradients come back through ``back``."""

    def __init__(self, inner: Operation, there: Tensor, back: Tensor) -> None:
        super().__init__(inner)
        self.there, self.back = there, back

    @property
    def _name(self) -> str:
        return self.layer.name + ".weight"

    def _settings(self, settings: Settings) -> Settings:
        weight = np.ascontiguousarray(self.there(settings.params[self._name]))
        return settings.changed(params={**settings.params, self._name: weight})

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        return self.inner.forward(x, self._settings(settings))

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        dx, gradients = self.inner.backward(dy, x, self._settings(settings))
        value, error = gradients[self._name]
        return dx, {**gradients, self._name: Bounded(self.back(value), self.back(np.zeros_like(value) + error))}


class OtherInput(Wrapped):
    """The operation of another input; ``relative`` bounds the rounding of the change."""

    def __init__(self, inner: Operation, change: Tensor, relative: float = 0.0) -> None:
        super().__init__(inner)
        self.change, self.relative = change, relative

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        value = self.change(x.value)
        return self.inner.forward(Bounded(value, self.relative * np.abs(value)), settings)

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        return self.inner.backward(dy, self.change(x), settings)


class Rearranged(Wrapped):
    """The operation's output rearranged by ``there``, for layers without parameters; ``back`` undoes it."""

    def __init__(self, inner: Operation, there: Tensor, back: Tensor) -> None:
        super().__init__(inner)
        self.there, self.back = there, back

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        value, error = self.inner.forward(x, settings)
        return Bounded(self.there(value), self.there(np.zeros_like(value) + error))

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        turned = Bounded(self.back(dy.value), self.back(np.zeros_like(dy.value) + dy.error))
        return self.inner.backward(turned, x, settings)


class Rectified(Wrapped):
    """A ReLU behind the operation."""

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        value, error = self.inner.forward(x, settings)
        return Bounded(np.maximum(value, 0), error)

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        value, error = self.inner.forward(Bounded(x), settings)
        open_ = np.abs(value) <= error
        passed = np.where(value > 0, dy.value, 0)
        return self.inner.backward(Bounded(passed, np.where(open_, np.abs(dy.value), dy.error)), x, settings)


class Scaled(Wrapped):
    """Gradients of the parameters, or of everything, times a factor."""

    def __init__(self, inner: Operation, factor: float) -> None:
        super().__init__(inner)
        self.factor = factor

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        dx, gradients = self.inner.backward(dy, x, settings)
        return times(dx, self.factor, settings.arithmetic), {
            name: times(value, self.factor, settings.arithmetic) for name, value in gradients.items()
        }


class Masked(Wrapped):
    """Another dropout mask."""

    def __init__(self, inner: Operation, mask: np.ndarray | None) -> None:
        super().__init__(inner)
        self.mask = mask

    def _settings(self, settings: Settings) -> Settings:
        if self.mask is None:
            return settings.changed(train=False, mask=None)
        return settings.changed(mask=self.mask)

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        return self.inner.forward(x, self._settings(settings))

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        return self.inner.backward(dy, x, self._settings(settings))


class InputGradient(Wrapped):
    """Another gradient of the input for the same output; ``rule`` gives it from (operation, dy, x, settings)."""

    def __init__(self, inner: Operation, rule: Callable[[Layer, Bounded, np.ndarray, Settings], Bounded]) -> None:
        super().__init__(inner)
        self.rule = rule

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        return self.rule(self.layer, dy, x, settings), {}


def times(value: Bounded, factor: float, arithmetic: Arithmetic) -> Bounded:
    """A value times a factor, with one more rounding."""
    product = value.value * factor
    return Bounded(product, np.abs(factor) * np.asarray(value.error) + arithmetic.floor * np.abs(product))


def changed(operation: Operation, **fields: Any) -> Operation:
    """The operation with other fields of its layer; raises ``ValueError`` where the layer cannot have them."""
    return operation.with_layer(dataclasses.replace(operation.layer, **fields))
