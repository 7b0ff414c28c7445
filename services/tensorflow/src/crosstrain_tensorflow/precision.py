"""Mixed precision of the plain engine: the types of a run, and the scale of the loss in float16."""

from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import tensorflow as tf

from crosstrain_service.training import Execution

#: As ``tf.keras.mixed_precision.LossScaleOptimizer`` starts, doubles and halves.
INITIAL_SCALE = 2.0 ** 15
GROWTH_STEPS = 2000


def types(precision: str) -> Tuple[tf.DType, tf.DType]:
    """Types of variables and of products, for "float32", "float64", "mixed_float16" or "mixed_bfloat16"."""
    if precision.startswith("mixed_"):
        return tf.float32, tf.as_dtype(precision[len("mixed_"):])
    return tf.as_dtype(precision or "float32"), tf.as_dtype(precision or "float32")


def fuse(execution: Execution) -> bool:
    """Whether operations may be fused. Not in parity mode, in mixed precision: a fused kernel rounds once where the
    operations that a probe records round one after the other, which moves gradients by some percent.
    """
    if execution.mode == "speed" or not execution.precision.startswith("mixed_"):
        return True
    tf.config.optimizer.set_experimental_options({"remapping": False})
    return False


class LossScale(tf.Module):
    """A factor on the loss that keeps gradients above float16's smallest numbers.

    Halved, and the step left out, when a gradient is not finite; doubled after 2,000 steps without.
    """

    def __init__(self) -> None:
        super().__init__(name="loss_scale")
        self.scale = tf.Variable(INITIAL_SCALE, dtype=tf.float32, trainable=False, name="scale")
        self.good = tf.Variable(0, dtype=tf.int64, trainable=False, name="good_steps")
        self.skipped = tf.Variable(0, dtype=tf.int64, trainable=False, name="skipped_steps")

    def apply(self, gradients: List[tf.Tensor], update: Callable[[List[tf.Tensor]], None]) -> None:
        """Calls ``update`` with the gradients, unscaled, if all are finite."""
        scale = tf.convert_to_tensor(self.scale)
        gradients = [g / scale for g in gradients]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])

        def step() -> tf.Tensor:
            update(gradients)
            grown = self.good + 1 >= GROWTH_STEPS
            self.scale.assign(tf.where(grown, scale * 2, scale))
            self.good.assign(tf.where(grown, tf.zeros_like(self.good), self.good + 1))
            return finite

        def skip() -> tf.Tensor:
            self.scale.assign(tf.maximum(scale / 2, 1.0))
            self.good.assign(0)
            self.skipped.assign_add(1)
            return finite

        tf.cond(finite, step, skip)

    def state_variables(self) -> Dict[str, Any]:
        """What a checkpoint holds."""
        return {"scale": self.scale, "good": self.good, "skipped": self.skipped}

    def skipped_steps(self) -> int:
        """Steps left out since the beginning."""
        return int(np.asarray(self.skipped.numpy()))
