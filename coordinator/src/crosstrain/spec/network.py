"""Networks of a job: the built-in ones, and layers written in the document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from crosstrain_service import model as plain
from crosstrain_service.errors import CrosstrainError

from .document import Path, field_name, line_of
from .errors import SpecError, Violation
from .job import JobSpec
from .layers import (
    AveragePoolSpec,
    BatchNormSpec,
    ConvolutionSpec,
    DenseSpec,
    DropoutSpec,
    LayerSpec,
    LocalResponseNormSpec,
    PaddingSpec,
    PadPair,
    PadSpec,
    PoolSpec,
    Sizes,
)

_PREFIX = {"convolution": "conv", "max_pool": "pool", "average_pool": "pool"}


def build_model(spec: JobSpec, input_shape: Sequence[int], classes: int) -> plain.Model:
    """The network for samples (C, H, W) or (C, L) and K classes.

    Raises:
        SpecError: ``INVALID_MODEL``; a layer does not fit, with its line.
    """
    shape = tuple(int(size) for size in input_shape)
    try:
        if isinstance(spec.model, str):
            return _built_in(spec.model, shape, classes).validate()
        layers = _Layers(spec, shape, classes).build(spec.model.layers)
        return plain.Model(spec.model.name, shape, classes, layers).validate()
    except CrosstrainError as error:
        if isinstance(error, SpecError):
            raise
        raise _refused(spec, ("model",), error.message) from None


def _built_in(name: str, shape: tuple[int, ...], classes: int) -> plain.Model:
    """cnn2 and cnn3: 3x3 (or 3) convolutions with padding 1, each with ReLU and 2x2 (or 2) max-pool."""
    dims = len(shape) - 1
    channels, units, rate = ((32, 64), (128,), 0.0) if name == "cnn2" else ((64, 128, 256), (512, 256), 0.5)
    one, two, three, zero = ((size,) * dims for size in (1, 2, 3, 0))
    layers: list[plain.Layer] = []
    for number, width in enumerate(channels, 1):
        layers += [
            plain.Convolution(f"conv{number}", width, three, one, one, one),
            plain.Relu(f"relu{number}"),
            plain.Pool(f"pool{number}", "max", two, two, zero, zero),
        ]
    layers.append(plain.Flatten("flatten"))
    for number, width in enumerate(units, 1):
        layers += [plain.Dense(f"dense{number}", width), plain.Relu(f"relu_dense{number}")]
        if rate:
            layers.append(plain.Dropout(f"dropout{number}", rate))
    layers.append(plain.Dense(f"dense{len(units) + 1}", classes))
    return plain.Model(name, shape, classes, tuple(layers))


class _Layers:
    """Turns layers of the document into layers of a model, following the shape from one to the next."""

    def __init__(self, spec: JobSpec, shape: tuple[int, ...], classes: int) -> None:
        self._spec = spec
        self._shape = shape
        self._classes = classes
        self._counts: Counter[str] = Counter()
        self._names: set[str] = set()

    def build(self, layers: Sequence[LayerSpec]) -> tuple[plain.Layer, ...]:
        given = [layer.settings.name for layer in layers if layer.settings.name]
        result = []
        for index, layer in enumerate(layers):
            path: Path = ("model", "layers", index)
            name = layer.settings.name or self._name(layer.kind, given)
            if name in self._names:
                raise _refused(self._spec, path, f"the layer name {name!r} is used more than once")
            self._names.add(name)
            item = self._layer(layer, name, (*path, layer.kind))
            try:
                self._shape = plain.output_shape(item, self._shape)
            except CrosstrainError as error:
                raise _refused(self._spec, path, error.message) from None
            result.append(item)
        return tuple(result)

    def _name(self, kind: str, given: list[str]) -> str:
        prefix = _PREFIX.get(kind, kind)
        while True:
            self._counts[prefix] += 1
            name = f"{prefix}{self._counts[prefix]}"
            if name not in given:
                return name

    def _layer(self, layer: LayerSpec, name: str, path: Path) -> plain.Layer:
        settings = layer.settings
        if isinstance(settings, ConvolutionSpec):
            kernel, stride = self._sizes(settings.kernel), self._sizes(settings.stride)
            begin, end = self._padding(settings.padding, kernel, stride, path)
            return plain.Convolution(name, settings.channels, kernel, stride, begin, end, settings.bias)
        if isinstance(settings, PoolSpec):
            kernel = self._sizes(settings.kernel)
            stride = kernel if settings.stride is None else self._sizes(settings.stride)
            begin, end = self._padding(settings.padding, kernel, stride, path)
            average = isinstance(settings, AveragePoolSpec)
            count = isinstance(settings, AveragePoolSpec) and settings.count_include_pad
            kind = "average" if average else "max"
            return plain.Pool(name, kind, kernel, stride, begin, end, settings.rounding, count)
        if isinstance(settings, DenseSpec):
            units = self._classes if settings.units == "classes" else settings.units
            return plain.Dense(name, units, settings.bias)
        if isinstance(settings, DropoutSpec):
            return plain.Dropout(name, settings.rate)
        if isinstance(settings, BatchNormSpec):
            return self._batch_norm(settings, name, path)
        if isinstance(settings, LocalResponseNormSpec):
            if settings.size % 2 == 0:
                raise _refused(self._spec, (*path, "size"), f"must be odd, not {settings.size}")
            factors = settings.alpha_sum, settings.beta, settings.k
            return plain.LocalResponseNorm(name, settings.size, *factors, settings.region)
        if isinstance(settings, PadSpec):
            one = self._sizes(1)
            return plain.Pad(name, *self._padding(settings.padding, one, one, path))
        return plain.Relu(name) if layer.kind == "relu" else plain.Flatten(name)

    def _batch_norm(self, settings: BatchNormSpec, name: str, path: Path) -> plain.Layer:
        if not self._spec.native:
            if settings.epsilon is None:
                message = "canonical semantics needs epsilon, for example batch_norm: {epsilon: 0.001}"
                raise _refused(self._spec, path, message)
            if settings.momentum is not None:
                message = (
                    "canonical semantics recomputes the statistics over the training data; "
                    "remove momentum, or write semantics: native"
                )
                raise _refused(self._spec, (*path, "momentum"), message)
        return plain.BatchNorm(name, settings.epsilon, settings.momentum)

    def _sizes(self, value: Sizes) -> tuple[int, ...]:
        return (value,) * max(1, len(self._shape) - 1) if isinstance(value, int) else tuple(value)

    def _padding(
        self, value: PaddingSpec, kernel: tuple[int, ...], stride: tuple[int, ...], path: Path
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if isinstance(value, PadPair):
            return self._sizes(value.begin), self._sizes(value.end)
        if value != "same":
            both = self._sizes(value)
            return both, both
        totals = [
            max((-(-size // step) - 1) * step + window - size, 0)
            for size, window, step in zip(self._shape[1:], kernel, stride, strict=False)
        ]
        begin = [total // 2 for total in totals]
        end = [total - first for total, first in zip(totals, begin, strict=True)]
        explicit = str(begin) if begin == end else f"{{begin: {begin}, end: {end}}}"
        message = (
            'frameworks disagree about "same"; write the padding out. What TensorFlow adds to this input '
            f"of {'x'.join(map(str, self._shape[1:]))} is padding: {explicit}"
        )
        raise _refused(self._spec, (*path, "padding"), message)


def _refused(spec: JobSpec, path: Path, message: str) -> SpecError:
    return SpecError([Violation(field_name(path), line_of(spec.lines, path), message)], "INVALID_MODEL")
