"""Data parallel training by ``tf.distribute``: one copy of the network per device, gradients added up.

One process drives all devices of a host (``MirroredStrategy``); several processes, each with a device of its own,
form a ``MultiWorkerMirroredStrategy``, whose members and their addresses are in ``TF_CONFIG``.
"""

from typing import Any, Callable, List

import numpy as np
import tensorflow as tf

from crosstrain_service.engine import Intermediates
from crosstrain_service.training import Execution

from .horovod_ranks import HorovodRanks
from .layout import Layout
from .shares import Share, split


class Replicas:
    """The copies of the network that this process holds: ``local`` of ``count`` in all, from number ``first`` on."""

    def __init__(self, execution: Execution) -> None:
        parallel, ranks = execution.parallel, execution.ranks
        self.count = parallel.data
        self.local = parallel.data // ranks.size
        self.first = ranks.rank * self.local
        self._host = "/CPU:0"
        self._on_gpus = execution.device == "cuda"
        if ranks.size > 1:
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=_communication(execution))
        else:
            self.strategy = _mirrored(execution, self.local)
        if self.strategy.num_replicas_in_sync != self.count:
            raise RuntimeError("%s has %d replicas instead of %d" % (
                type(self.strategy).__name__, self.strategy.num_replicas_in_sync, self.count))

    def scope(self) -> Any:
        """Where variables are made, one copy per replica."""
        return self.strategy.scope()

    def run(self, function: Callable[[Share], Any], share: Share) -> List[Any]:
        """Results of ``function`` for each local replica's part of the process's share, in order."""
        with tf.device(self._host):
            shares = [part._replace(add=self.add) for part in split(share, self.local)]

        def replica() -> Any:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            return function(shares[int(tf.get_static_value(number)) - self.first])

        results = self.strategy.run(replica)
        flat = tf.nest.flatten(results)
        local = [self.strategy.experimental_local_results(value) for value in flat]
        return [tf.nest.pack_sequence_as(results, [values[index] for values in local]) for index in range(self.local)]

    def local_values(self, variable: Any) -> List[Any]:
        """The variable of each replica in this process."""
        return list(self.strategy.experimental_local_results(variable))

    def add(self, values: List[tf.Tensor]) -> List[tf.Tensor]:
        """Sums over all replicas, inside one of them."""
        return add(values)

    def close(self) -> None:
        """Nothing to end."""

    def feed(self, dataset: tf.data.Dataset) -> Any:
        """``dataset`` for ``fit``: successive elements are the shares of this process's replicas, in order."""
        options = tf.distribute.InputOptions(experimental_fetch_to_device=self._on_gpus)
        return self.strategy.distribute_datasets_from_function(lambda context: dataset, options)


def add(values: List[tf.Tensor]) -> List[tf.Tensor]:
    """Sums over all replicas, inside one of them; the values themselves outside of any strategy."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, values))


def data_ranks(execution: Execution) -> Any:
    """The data ranks of this process, or None alone."""
    if execution.parallel.data == 1:
        return None
    return HorovodRanks(execution) if execution.parallel.backend == "horovod" else Replicas(execution)


def _mirrored(execution: Execution, devices: int) -> tf.distribute.Strategy:
    if execution.device == "cuda":
        # The default is NCCL.
        return tf.distribute.MirroredStrategy(["/GPU:%d" % index for index in range(devices)])
    # All logical CPU devices share one memory: adding up in one place copies nothing.
    return tf.distribute.MirroredStrategy(
        ["/CPU:%d" % index for index in range(devices)],
        cross_device_ops=tf.distribute.ReductionToOneDevice("/CPU:0"))


def _communication(execution: Execution) -> tf.distribute.experimental.CommunicationOptions:
    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=execution.parallel.bucket_mib << 20,
        implementation=kinds.NCCL if execution.device == "cuda" else kinds.RING)


def together(parts: List[Intermediates], layout: Layout, rows: int) -> Intermediates:
    """What the replicas of one process recorded as tensors, in canonical form; ``rows`` divides the sum of losses."""
    names = list(parts[0].outputs)
    outputs = {name: np.concatenate([part.outputs[name].numpy() for part in parts]) for name in names}
    found = {name: np.concatenate([part.output_gradients[name].numpy() for part in parts]) for name in names}
    gradients = {name: sum(part.gradients[name].numpy() for part in parts) for name in parts[0].gradients}
    return Intermediates(
        loss=sum(float(part.loss) for part in parts) / rows,
        outputs={name: layout.output_to_canonical(name, value) for name, value in outputs.items()},
        output_gradients={name: layout.output_to_canonical(name, value) for name, value in found.items()},
        gradients={name: layout.to_canonical(name, value) for name, value in gradients.items()},
    )
