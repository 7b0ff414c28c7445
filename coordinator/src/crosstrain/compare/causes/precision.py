"""Conventions of precision: products of operands with fewer bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.operations import Gradients, Operation, Settings, Wrapped
from crosstrain.compare.causes.rounding import BFLOAT16, FLOAT16, TF32, Format, representable, rounded
from crosstrain.compare.numerics.bounds import Bounded
from crosstrain_reference import Convolution, Dense

# Matrix units add up with fewer guard bits than a float32 sum has.
_ADDING = 4.0
# Formats that mixed precision asks for, or that are finer.
_ASKED = {"float16": (FLOAT16, TF32), "bfloat16": (BFLOAT16, FLOAT16, TF32)}


class _Short(Wrapped):
    """Operands rounded to a format; ``results`` too where the engine keeps them in it."""

    def __init__(self, inner: Operation, to: Format, truncate: bool, results: bool) -> None:
        super().__init__(inner)
        self.to, self.truncate, self.results = to, truncate, results

    def _round(self, value: np.ndarray) -> np.ndarray:
        return rounded(value, self.to, self.truncate)

    def _settings(self, settings: Settings) -> Settings:
        name = self.layer.name + ".weight"
        params = {**settings.params, name: self._round(settings.params[name])}
        if self.results and self.layer.name + ".bias" in params:
            params[self.layer.name + ".bias"] = self._round(params[self.layer.name + ".bias"])
        return settings.changed(params=params)

    def _result(self, value: Bounded) -> Bounded:
        error = _ADDING * np.asarray(value.error)
        return Bounded(value.value, error + 2 * self.to.unit * np.abs(value.value) if self.results else error)

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        return self._result(self.inner.forward(Bounded(self._round(x.value), x.error), self._settings(settings)))

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        short = Bounded(self._round(dy.value), dy.error)
        dx, gradients = self.inner.backward(short, self._round(x), self._settings(settings))
        return self._result(dx), {name: self._result(value) for name, value in gradients.items()}


def _short(to: Format) -> Any:
    def vary(operation: Operation, place: Place) -> Iterator[Operation]:
        if not isinstance(operation.layer, (Convolution, Dense)) or to in _ASKED.get(place.problem.half, ()):
            return
        found = place.arithmetic.wide(place.found)
        results = bool(np.isfinite(found).all()) and representable(found, to)
        for truncate in (False, True):
            yield _Short(operation, to, truncate, results)

    return vary


_RESTORE = (
    "torch.backends.cudnn.allow_tf32 = False and torch.set_float32_matmul_precision(\"highest\"); "
    "tf.config.experimental.enable_tensor_float_32_execution(False); NVIDIA_TF32_OVERRIDE=0 for all; "
    "mode: parity in the job."
)
_MIXED = "No autocast and no mixed precision policy: keep the network and its inputs in float32."

CONVENTIONS = (
    Convention(
        "precision.tf32",
        "Products in TF32",
        "The operands of products are rounded to 11 significant bits, which gives relative errors near 5e-4.",
        "On by default for convolutions in PyTorch and for everything in TensorFlow on NVIDIA GPUs since Ampere.",
        _RESTORE,
        {"layer": _short(TF32)},
        4,
    ),
    Convention(
        "precision.float16",
        "Products in float16",
        "The operands of products are rounded to half precision: 11 significant bits and a small range.",
        "Mixed precision: torch.autocast, Keras mixed_float16, cuDNN with half storage.",
        _MIXED,
        {"layer": _short(FLOAT16)},
        5,
    ),
    Convention(
        "precision.bfloat16",
        "Products in bfloat16",
        "The operands of products are rounded to 8 significant bits, which gives relative errors near 4e-3.",
        "Mixed precision: torch.autocast on CPUs, Keras mixed_bfloat16; oneDNN's fast-math mode.",
        _MIXED + " oneDNN: ONEDNN_DEFAULT_FPMATH_MODE=STRICT.",
        {"layer": _short(BFLOAT16)},
        4,
    ),
)
