"""Layers of a network in a job document.

A layer is written as ``kind: {settings}``, or as the bare ``kind`` where it needs none. Sizes are one
integer for all spatial dimensions, or a list ``[height, width]`` (``[length]`` for 1D data).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .base import LayerName, NotNegative, Padding, Part, Positive, Share, Size

Sizes = Size | Annotated[list[Size], Field(min_length=1, max_length=2)]
Paddings = Padding | Annotated[list[Padding], Field(min_length=1, max_length=2)]


class PadPair(Part):
    """Different padding before (top, left) and after (bottom, right)."""

    begin: Paddings
    end: Paddings


#: "same" is read so that it can be refused with the padding to write instead.
PaddingSpec = Paddings | PadPair | Literal["same"]


class LayerSettings(Part):
    """Settings of one layer; a name is made from the kind and a number when none is given."""

    name: LayerName | None = None


class ConvolutionSpec(LayerSettings):
    """Cross-correlation with ``channels`` outputs."""

    channels: Size
    kernel: Sizes
    stride: Sizes = 1
    padding: PaddingSpec = 0
    bias: bool = True


class PoolSpec(LayerSettings):
    """Pooling; ``stride`` is the kernel's size unless given."""

    kernel: Sizes
    stride: Sizes | None = None
    padding: PaddingSpec = 0
    rounding: Literal["floor", "ceil"] = "floor"


class AveragePoolSpec(PoolSpec):
    """``count_include_pad``: whether padded zeros count in the divisor."""

    count_include_pad: bool = False


class DenseSpec(LayerSettings):
    """Fully connected; ``units: classes`` means the number of classes of the data."""

    units: Size | Literal["classes"]
    bias: bool = True


class DropoutSpec(LayerSettings):
    """Inverted dropout; ``rate`` is the share of values set to zero."""

    rate: Share


class BatchNormSpec(LayerSettings):
    """Canonical semantics needs ``epsilon``; ``momentum`` (of the old value) is for native semantics."""

    epsilon: Positive | None = None
    momentum: Share | None = None


class LocalResponseNormSpec(LayerSettings):
    """x / (k + alpha_sum * sum of squares over ``size`` channels, or positions of a channel per dimension)^beta."""

    size: Size
    alpha_sum: NotNegative
    beta: NotNegative
    k: Positive
    region: Literal["across_channels", "within_channel"] = "across_channels"


class PadSpec(LayerSettings):
    """Zeros around the spatial dimensions."""

    padding: Paddings | PadPair


class LayerSpec(Part):
    """One layer: exactly one kind is set."""

    convolution: ConvolutionSpec | None = None
    max_pool: PoolSpec | None = None
    average_pool: AveragePoolSpec | None = None
    dense: DenseSpec | None = None
    relu: LayerSettings | None = None
    flatten: LayerSettings | None = None
    dropout: DropoutSpec | None = None
    batch_norm: BatchNormSpec | None = None
    local_response_norm: LocalResponseNormSpec | None = None
    pad: PadSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, str) and value in ("relu", "flatten", "batch_norm"):
            return {value: {}}
        if isinstance(value, str):
            raise ValueError(
                f"{value!r} is not a layer that needs no settings; write e.g. {{dense: {{units: 10}}}}. "
                f"Kinds are {', '.join(cls.model_fields)}"
            )
        if isinstance(value, dict):
            return {kind: {} if settings is None else settings for kind, settings in value.items()}
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> LayerSpec:
        if len(self.kinds()) != 1:
            raise ValueError(
                "a layer is exactly one kind with its settings, for example {dense: {units: 10}}; "
                f"kinds are {', '.join(type(self).model_fields)}"
            )
        return self

    def kinds(self) -> list[str]:
        """Kinds that are set."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    @property
    def kind(self) -> str:
        """The kind of this layer."""
        return self.kinds()[0]

    @property
    def settings(self) -> LayerSettings:
        """The settings of this layer."""
        result: LayerSettings = getattr(self, self.kind)
        return result
