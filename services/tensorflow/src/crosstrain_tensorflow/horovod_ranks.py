"""Data parallel training by Horovod: a process per rank, gradients added up by Horovod's operations.

Horovod on GPUs has not been run.
"""

import importlib.util
from typing import Any, Callable, List

import tensorflow as tf

from crosstrain_service.parallel.horovod_settings import begin
from crosstrain_service.training import Execution

from .shares import Share


def obstacle() -> str:
    """Why Horovod cannot be used here, or an empty text."""
    if importlib.util.find_spec("horovod") is None:
        return "Horovod is not built in this environment"
    try:
        import horovod.tensorflow as hvd
    except Exception as error:  # whatever a library built for another TensorFlow may raise
        return "Horovod cannot be imported: %s" % type(error).__name__
    return "" if hvd.gloo_built() else "Horovod is built without Gloo"


class HorovodRanks:
    """This process's one copy of the network, number ``first`` of ``count``; like ``Replicas`` to an engine."""

    local = 1

    def __init__(self, execution: Execution) -> None:
        import horovod.tensorflow as hvd

        begin(execution, hvd)
        self._hvd = hvd
        self.count = hvd.size()
        self.first = hvd.rank()
        self._calls = 0
        self._device = "/GPU:0" if execution.device == "cuda" else "/CPU:0"

    def scope(self) -> Any:
        """Where variables are made."""
        return tf.device(self._device)

    def run(self, function: Callable[[Share], Any], share: Share) -> List[Any]:
        """The result of ``function`` for this process's share, as a list of one."""
        with tf.device(self._device):
            return [function(share._replace(add=self.add))]

    def add(self, values: List[tf.Tensor]) -> List[tf.Tensor]:
        """Sums over all ranks; Horovod differentiates them as sums."""
        # Every process makes the same calls in the same order, so that equal names meet.
        self._calls += 1
        return [self._hvd.allreduce(value, op=self._hvd.Sum, name="crosstrain.%d.%d" % (self._calls, index))
                for index, value in enumerate(values)]

    def feed(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """``dataset`` for ``fit``, which holds this process's shares."""
        return dataset

    def local_values(self, variable: tf.Variable) -> List[tf.Variable]:
        """The variable of each copy in this process."""
        return [variable]

    def close(self) -> None:
        """Nothing: Horovod ends with the process."""
