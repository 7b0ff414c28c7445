"""A Caffe network (``train_val.prototxt`` or ``deploy.prototxt``) as a model.

Taken: a sequence of layers from one input to logits, in the training phase. What feeds the input (layers that read
files or databases) and what measures the output (loss, accuracy) is left out; no path in the file is
opened. Everything else is refused, naming the layer: layers with code (``Python``) above all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from crosstrain_service import model as plain
from crosstrain_service.errors import CrosstrainError

from .reading import Fields
from .textproto import Message, invalid, parse

_DATA = {"Data", "ImageData", "HDF5Data", "MemoryData", "Input", "DummyData"}
_MEASURES = {"SoftmaxWithLoss", "Softmax", "Accuracy", "Silence"}
_WITHOUT_INFLUENCE = ("name", "type", "bottom", "top", "include", "exclude", "phase", "loss_weight", "propagate_down")
_FILLERS = ("weight_filler", "bias_filler", "filler", "engine")


@dataclass
class Decay:
    """Multipliers that Caffe's solver applies to a parameter: rate and decay, by canonical name."""

    rates: dict[str, float] = field(default_factory=dict)
    decays: dict[str, float] = field(default_factory=dict)


@dataclass
class Imported:
    """What a network file says.

    ``sources``: Caffe's layer of each of the model's layers with parameters (two for batch norm: the
    statistics' layer, then gamma's and beta's). ``batch_size``: of the training data, 0 if unknown; ``divisor``: of
    the pixels; ``remarks``: on what was read otherwise than it is written.
    """

    model: plain.Model
    sources: dict[str, tuple[str, ...]]
    multipliers: Decay
    batch_size: int
    divisor: float
    remarks: tuple[str, ...] = ()


def import_net(text: str, input_shape: Sequence[int] | None = None) -> Imported:
    """Reads a network. ``input_shape`` (C, H, W) is needed where the file only names a database.

    Raises CrosstrainError (``INVALID_MODEL``) naming line and layer.
    """
    net = Fields(parse(text), "the network")
    name = net.text("name", "imported")
    if "layers" in net:
        raise net.wrong("has the first format (layers); Caffe's upgrade_net_proto_text turns it into the present one")
    # What the values of old fields mean is the shape of the input.
    dims = net.wholes("input_dim") or [
        size for shape in net.messages("input_shape") for size in Fields(shape, "input_shape").wholes("dim")
    ]
    inputs = net.texts("input")
    layers = [_Layer(message) for message in net.messages("layer")]
    net.ignore("force_backward", "debug_info", "state")
    net.finish()
    builder = _Builder(name, input_shape)
    if inputs:
        builder.begin(inputs[0], dims)
    for layer in layers:
        if layer.trains:
            builder.add(layer)
    return builder.imported()


class _Layer:
    def __init__(self, message: Message) -> None:
        fields = Fields(message, "layer")
        self.name = fields.text("name")
        self.kind = fields.text("type")
        self.bottoms, self.tops = fields.texts("bottom"), fields.texts("top")
        self.fields = fields
        fields.where = f"layer {self.name!r} ({self.kind})"
        rules = [Fields(rule, fields.where) for rule in fields.messages("include")]
        without = [Fields(rule, fields.where) for rule in fields.messages("exclude")]
        phases = [rule.word("phase", "TRAIN") for rule in rules]
        self.trains = (not rules or "TRAIN" in phases) and not any(
            rule.word("phase", "TRAIN") == "TRAIN" for rule in without
        )
        fields.ignore(*_WITHOUT_INFLUENCE)

    def wrong(self, message: str) -> Exception:
        return self.fields.wrong(message)


class _Builder:
    def __init__(self, name: str, input_shape: Sequence[int] | None) -> None:
        self._name = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("_.-")[:128] or "imported"
        self._given = tuple(input_shape) if input_shape else None
        self._shape: plain.Shape = ()
        self._blob = ""
        self._labels: set[str] = set()
        self._layers: list[plain.Layer] = []
        self._names: set[str] = set()
        self._sources: dict[str, tuple[str, ...]] = {}
        self._multipliers = Decay()
        self._batch = 0
        self._divisor = 1.0
        self._norm: tuple[_Layer, float, float | None] | None = None
        self._measured = False
        self._remarks: list[str] = []
        self._line = 1

    def begin(self, blob: str, dims: Sequence[int]) -> None:
        """Sets the network's input; ``dims`` with the batch, or empty."""
        if self._blob:
            raise invalid(f"{blob!r} is a second input besides {self._blob!r}; one is taken")
        self._blob = blob
        shape = self._given or tuple(dims[1:])
        if len(shape) not in (2, 3) or min(shape) < 1:
            raise invalid("the file does not tell the shape of the input; state it, for example --input-shape 1,28,28")
        self._shape = self._input = shape
        self._batch = self._batch or (dims[0] if dims else 0)

    def add(self, layer: _Layer) -> None:
        """One layer of the training phase."""
        if layer.kind == "Python":
            raise layer.wrong("layers with code are not taken")
        if layer.kind in _DATA:
            self._data(layer)
            return
        if layer.kind in _MEASURES:
            if layer.kind == "SoftmaxWithLoss" and (layer.bottoms[:1] != [self._blob] or self._measured):
                raise layer.wrong("the loss must be of the last layer, and there must be one")
            self._measured = self._measured or layer.kind == "SoftmaxWithLoss"
            return
        method = self._METHODS.get(layer.kind)
        if method is None:
            raise layer.wrong(f"layers of this type are not taken; known are {', '.join(sorted(self._METHODS))}")
        if layer.bottoms != [self._blob] or len(layer.tops) != 1:
            raise layer.wrong(
                f"only a sequence of layers is taken: it must have one output, and {self._blob!r} as input"
            )
        if self._norm is not None and layer.kind != "Scale":
            raise self._norm[0].wrong("a Scale layer must follow: Crosstrain's batch norm has gamma and beta")
        self._line = layer.fields.line
        method(self, layer)
        layer.fields.finish()
        self._blob = layer.tops[0]

    def _data(self, layer: _Layer) -> None:
        fields = layer.fields
        parameters = fields.inner("transform_param")
        scale = parameters.number("scale", 1.0)
        for change in ("mean_file", "mean_value", "crop_size", "mirror", "force_color", "force_gray"):
            if change in parameters and parameters.word(change, "") not in ("0", "false"):
                raise layer.wrong(
                    f"{change} changes the input, which Crosstrain takes as it is; prepare the data instead"
                )
        if scale <= 0:
            raise layer.wrong("scale must be positive")
        self._divisor = 1.0 / scale
        batches = [
            fields.inner(part).whole("batch_size", 0)
            for part in ("data_param", "image_data_param", "hdf5_data_param", "memory_data_param")
        ]
        self._batch = max([self._batch, *batches])
        shapes = [Fields(shape, fields.where).wholes("dim") for shape in fields.inner("input_param").messages("shape")]
        if not layer.tops:
            raise layer.wrong("has no output")
        for number, top in enumerate(layer.tops):
            dims = shapes[min(number, len(shapes) - 1)] if shapes else []
            if "label" in top or top in self._labels or (shapes and len(dims) < 2):
                self._labels.add(top)
            elif number == 0 or not self._blob:
                self.begin(top, dims)

    def _append(self, item: plain.Layer, *sources: str) -> None:
        try:
            self._shape = plain.output_shape(item, self._shape)
        except CrosstrainError as error:
            raise invalid(error.message, self._line) from None
        self._layers.append(item)
        if sources:
            self._sources[item.name] = sources

    def _called(self, layer: _Layer, suffix: str = "") -> str:
        name = re.sub(r"[^A-Za-z0-9_]", "_", layer.name)
        if not name or not name[0].isalpha():
            name = f"layer_{name}"
        name = base = (name + suffix)[:60]
        number = 1
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    def _multiply(self, layer: _Layer, *parameters: str) -> None:
        specs = [Fields(spec, layer.fields.where) for spec in layer.fields.messages("param")]
        if len(specs) > len(parameters):
            raise layer.wrong(f"has {len(specs)} param blocks for {len(parameters)} parameters")
        for number, parameter in enumerate(parameters):
            spec = specs[number] if number < len(specs) else Fields(Message(0), "")
            self._multipliers.rates[parameter] = spec.number("lr_mult", 1.0)
            self._multipliers.decays[parameter] = spec.number("decay_mult", 1.0)
            if "name" in spec and spec.text("name"):
                raise layer.wrong("parameters shared by name are not taken")

    def _extents(self, fields: Fields, name: str, default: int, repeated: bool) -> tuple[int, ...]:
        """Sizes per spatial dimension: ``kernel_h`` and ``kernel_w``, or ``kernel_size`` once or for each."""
        short = name.partition("_")[0]
        both = [fields.whole(f"{short}_{axis}", -1) for axis in "hw"]
        found = fields.wholes(name)
        dims = len(self._shape) - 1
        if min(both) >= 0:
            found = both
        if len(found) > 1 and not repeated and min(both) < 0:
            raise fields.wrong(f"{name} is given {len(found)} times")
        if not found:
            found = [default]
        if len(found) not in (1, dims):
            raise fields.wrong(f"{name} has {len(found)} values for {dims} dimensions")
        return tuple(found * dims if len(found) == 1 else found)

    def _convolution(self, layer: _Layer) -> None:
        fields = layer.fields.inner("convolution_param")
        fields.ignore(*_FILLERS, "force_nd_im2col")
        kernel = self._extents(fields, "kernel_size", 0, True)
        stride = self._extents(fields, "stride", 1, True)
        pad = self._extents(fields, "pad", 0, True)
        if fields.whole("group", 1) != 1 or set(fields.wholes("dilation")) - {1} or fields.whole("axis", 1) != 1:
            raise layer.wrong("group, dilation and axis must be 1")
        bias = fields.truth("bias_term", True)
        name = self._called(layer)
        item = plain.Convolution(name, fields.whole("num_output", 0), kernel, stride, pad, pad, bias)
        fields.finish()
        self._multiply(layer, f"{name}.weight", *([f"{name}.bias"] if bias else []))
        self._append(item, layer.name)

    def _pooling(self, layer: _Layer) -> None:
        fields = layer.fields.inner("pooling_param")
        fields.ignore("engine")
        kinds = {"MAX": "max", "AVE": "average", "0": "max", "1": "average"}
        kind = kinds.get(fields.word("pool", "MAX"))
        if kind is None:
            raise layer.wrong("pool must be MAX or AVE")
        everywhere = fields.truth("global_pooling", False)
        kernel = self._shape[1:] if everywhere else self._extents(fields, "kernel_size", 0, False)
        stride = self._extents(fields, "stride", 1, False)
        pad = self._extents(fields, "pad", 0, False)
        rounding = {"CEIL": "ceil", "FLOOR": "floor", "0": "ceil", "1": "floor"}.get(fields.word("round_mode", "CEIL"))
        if rounding is None:
            raise layer.wrong("round_mode must be CEIL or FLOOR")
        fields.finish()
        for size, k, s, p in zip(self._shape[1:], kernel, stride, pad, strict=True):
            if not any(pad) and s > 0 and size >= k and rounding == "ceil" and -(-(size - k) // s) * s >= size:
                raise layer.wrong("a window lies outside of the input, where Caffe computes nothing sensible")
            if k < 1 or s < 1 or p < 0:
                raise layer.wrong("kernel and stride must be positive")
        item = plain.Pool(self._called(layer), kind, tuple(kernel), stride, pad, pad, rounding, kind == "average")
        self._append(item)

    def _inner_product(self, layer: _Layer) -> None:
        fields = layer.fields.inner("inner_product_param")
        fields.ignore(*_FILLERS)
        if fields.whole("axis", 1) != 1 or fields.truth("transpose", False):
            raise layer.wrong("axis must be 1 and transpose false")
        if len(self._shape) > 1:
            self._append(plain.Flatten(self._called(layer, "_flatten")))
        bias = fields.truth("bias_term", True)
        name = self._called(layer)
        item = plain.Dense(name, fields.whole("num_output", 0), bias)
        fields.finish()
        self._multiply(layer, f"{name}.weight", *([f"{name}.bias"] if bias else []))
        self._append(item, layer.name)

    def _relu(self, layer: _Layer) -> None:
        fields = layer.fields.inner("relu_param")
        fields.ignore("engine")
        if fields.number("negative_slope", 0.0):
            raise layer.wrong("negative_slope must be 0")
        self._append(plain.Relu(self._called(layer)))

    def _dropout(self, layer: _Layer) -> None:
        rate = layer.fields.inner("dropout_param").number("dropout_ratio", 0.5)
        if not 0 <= rate < 1:
            raise layer.wrong("dropout_ratio must be from 0 to below 1")
        self._append(plain.Dropout(self._called(layer), rate))

    def _lrn(self, layer: _Layer) -> None:
        fields = layer.fields.inner("lrn_param")
        fields.ignore("engine")
        regions = {"ACROSS_CHANNELS": "across_channels", "WITHIN_CHANNEL": "within_channel"}
        regions |= {"0": "across_channels", "1": "within_channel"}
        region = regions.get(fields.word("norm_region", "ACROSS_CHANNELS"))
        if region is None:
            raise layer.wrong("norm_region must be ACROSS_CHANNELS or WITHIN_CHANNEL")
        size = fields.whole("local_size", 5)
        if size < 1 or size % 2 == 0:
            raise layer.wrong("local_size must be odd")
        alpha, beta, k = fields.number("alpha", 1.0), fields.number("beta", 0.75), fields.number("k", 1.0)
        # Caffe divides its alpha by the number of elements of the window.
        elements = size
        if region == "within_channel":
            if len(self._shape) != 3:
                raise layer.wrong("Caffe normalises images alone within a channel")
            elements = size**2
            if k != 1:
                self._remarks.append(f"{layer.name}: Caffe ignores k within a channel; 1 was taken, as it computes")
                k = 1.0
        self._append(plain.LocalResponseNorm(self._called(layer), size, alpha / elements, beta, k, region))

    def _flatten(self, layer: _Layer) -> None:
        fields = layer.fields.inner("flatten_param")
        if fields.whole("axis", 1) != 1 or fields.whole("end_axis", -1) != -1:
            raise layer.wrong("everything but the batch must be flattened")
        self._append(plain.Flatten(self._called(layer)))

    def _batch_norm(self, layer: _Layer) -> None:
        fields = layer.fields.inner("batch_norm_param")
        if fields.truth("use_global_stats", False):
            raise layer.wrong("training with fixed statistics (use_global_stats) is not taken")
        layer.fields.ignore("param")  # Caffe itself refuses rates other than 0 for them.
        # What is not given stays a framework's own in native semantics; here that is 0.999.
        fraction = fields.number("moving_average_fraction", 0.0) if "moving_average_fraction" in fields else None
        self._norm = (layer, fields.number("eps", 1e-5), fraction)

    def _scale(self, layer: _Layer) -> None:
        if self._norm is None:
            raise layer.wrong("a Scale layer is taken only behind a BatchNorm layer")
        norm, epsilon, fraction = self._norm
        self._norm = None
        fields = layer.fields.inner("scale_param")
        fields.ignore(*_FILLERS)
        if fields.whole("axis", 1) != 1 or fields.whole("num_axes", 1) != 1 or not fields.truth("bias_term", False):
            raise layer.wrong("must have axis 1, num_axes 1 and a bias")
        fields.finish()
        norm.name, source = norm.name.removesuffix(".normalised"), norm.name
        name = self._called(norm)
        self._multiply(layer, f"{name}.gamma", f"{name}.beta")
        self._append(plain.BatchNorm(name, epsilon, fraction), source, layer.name)

    _METHODS = {
        "Convolution": _convolution,
        "Pooling": _pooling,
        "InnerProduct": _inner_product,
        "ReLU": _relu,
        "Dropout": _dropout,
        "LRN": _lrn,
        "Flatten": _flatten,
        "BatchNorm": _batch_norm,
        "Scale": _scale,
    }

    def imported(self) -> Imported:
        """The result, checked as a whole."""
        if self._norm is not None:
            raise self._norm[0].wrong("a Scale layer must follow: Crosstrain's batch norm has gamma and beta")
        if not self._blob:
            raise invalid("the network has no input")
        if len(self._shape) != 1:
            raise invalid("the network does not end in one value per class")
        model = plain.Model(self._name, self._input, self._shape[0], tuple(self._layers))
        try:
            model.validate()
        except CrosstrainError as error:
            raise invalid(error.message) from None
        found = self._sources, self._multipliers, self._batch, self._divisor
        return Imported(model, *found, tuple(self._remarks))
