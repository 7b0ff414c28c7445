"""Data parallel training by Horovod: a process per rank, gradients added up by Horovod's operations.

Horovod on GPUs has not been run.
"""

import importlib.util
from typing import Any, Callable, Dict, List

import tensorflow as tf

from crosstrain_service.parallel.horovod_settings import begin
from crosstrain_service.training import Execution

from .shares import Share

#: What is reduced at once at most, bytes, unless a job says otherwise; the default of ``DistributedDataParallel``.
BUCKET_BYTES = 25 << 20


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
        self._bucket_bytes = execution.parallel.bucket_mib << 20 or BUCKET_BYTES
        self._device = "/GPU:0" if execution.device == "cuda" else "/CPU:0"

    def scope(self) -> Any:
        """Where variables are made."""
        return tf.device(self._device)

    def run(self, function: Callable[[Share], Any], share: Share) -> List[Any]:
        """The result of ``function`` for this process's share, as a list of one."""
        with tf.device(self._device):
            return [function(share._replace(add=self.add))]

    def add(self, values: List[tf.Tensor]) -> List[tf.Tensor]:
        """Sums over all ranks; Horovod differentiates them as sums.

        A bucket is reduced as soon as all of it is there. One tensor after the other, as Horovod's own optimizer has
        it, wakes Horovod's thread several times in the middle of a backward pass that needs the cores.
        """
        # Every process makes the same calls in the same order, so that equal names meet.
        self._calls += 1
        sums: Dict[int, tf.Tensor] = {}
        for number, bucket in enumerate(buckets(values, self._bucket_bytes)):
            sums.update(zip(bucket, self._hvd.grouped_allreduce(
                [values[index] for index in bucket], op=self._hvd.Sum,
                name="crosstrain.%d.%d" % (self._calls, number))))
        return [sums[index] for index in range(len(values))]

    def feed(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """``dataset`` for ``fit``, which holds this process's shares."""
        return dataset

    def local_values(self, variable: tf.Variable) -> List[tf.Variable]:
        """The variable of each copy in this process."""
        return [variable]

    def close(self) -> None:
        """Nothing: Horovod ends with the process."""


def buckets(values: List[tf.Tensor], limit: int) -> List[List[int]]:
    """Positions of ``values`` cut into groups of one type and at most ``limit`` bytes, or one value if it is larger.

    The last come first: a backward pass ends with the gradients of the first layers.
    """
    found: List[List[int]] = []
    size = 0
    for index in reversed(range(len(values))):
        value = values[index]
        more = (value.shape.num_elements() or 0) * value.dtype.size
        if found and size + more <= limit and values[found[-1][0]].dtype == value.dtype:
            found[-1].append(index)
            size += more
        else:
            found.append([index])
            size = more
    return found
