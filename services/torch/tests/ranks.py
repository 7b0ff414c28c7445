"""Runs a function of an engine in several processes that train together.

The processes are forked from a server that has PyTorch imported, which saves its seconds for each of them.
"""

import dataclasses
import faulthandler
import multiprocessing
import os
import socket
import tempfile
import traceback

import numpy as np
import oracle

from crosstrain_service.engine import Batch
from crosstrain_service.parallel.shares import share_slice
from crosstrain_service.testing import ListLoop
from crosstrain_service.training import Execution, Ranks
from crosstrain_torch import environment
from crosstrain_torch.engine import TorchEngine

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["crosstrain_torch.engine", "torch.distributed.pipelining"])


def share(batch, execution):
    """This process's share of a whole batch, one row standing in for an empty one."""
    size = len(batch.labels)
    rows = share_slice(size, execution.data_shares, execution.data_share)
    samples = rows.stop - rows.start
    if not samples:
        rows = slice(0, 1)
    masks = {name: np.ascontiguousarray(mask[rows]) for name, mask in batch.masks.items()}
    x, labels = np.ascontiguousarray(batch.x[rows]), np.ascontiguousarray(batch.labels[rows])
    return Batch(batch.step, x, labels, batch.learning_rate, masks, samples=samples, total=size)


def run(function, parallel, *arguments, members=1, **execution):
    """``function(execution, *arguments)`` in every rank; a list of what they return.

    ``members``: hosts that the ranks act as if they were on, one each.
    """
    size = parallel.ranks
    with tempfile.TemporaryDirectory() as folder:
        ports = tuple(_free_ports(size))
        started = []
        for rank in range(size):
            alone = members > 1
            place = Ranks(rank=rank, size=size, local_rank=0 if alone else rank, local_size=1 if alone else size,
                          member=rank if alone else 0, members=members, hosts=("127.0.0.1",) * size, ports=ports,
                          rendezvous=("127.0.0.1", ports[0]), folder=folder)
            whole = Execution(parallel=parallel, ranks=place, **execution)
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_rank, args=(sender, function, whole, folder, arguments))
            process.start()
            sender.close()
            started.append((process, receiver))
        found, errors = [], []
        for _, receiver in started:
            try:
                good, value = receiver.recv() if receiver.poll(120) else (False, "no answer")
            except EOFError:
                good, value = False, "ended without an answer"
            (found if good else errors).append(value)
            if not good:
                for other, _ in started:
                    other.kill()
        for process, _ in started:
            process.join()
        assert not errors, "\n".join(errors)
        return found


def _rank(sender, function, execution, folder, arguments):
    os.environ.update(environment("torch", execution, folder))
    # Where it hangs, if it does.
    faulthandler.dump_traceback_later(100)
    try:
        sender.send((True, function(execution, *arguments)))
    except BaseException:
        sender.send((False, "rank %d\n%s" % (execution.ranks.rank, traceback.format_exc())))
    sender.close()
    # As the service's own child ends.
    os._exit(0)


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Loop(ListLoop):
    """Also collects the seconds of waiting."""

    def __init__(self, batches):
        super().__init__(batches)
        self.waited = []

    def step_done(self, loss, correct=None, sync_seconds=0.0, copy_seconds=0.0):
        super().step_done(loss, correct)
        self.waited.append(sync_seconds)


@dataclasses.dataclass
class Outcome:
    """What a rank has after training."""

    losses: list
    parameters: dict
    optimizer: dict
    statistics: dict
    state: dict
    bytes: object
    waited: list


def train(execution, model, settings, batches, state=None, fault=None, start=None):
    """Trains on this rank's shares of ``batches``, from the tests' parameters, ``start`` or a checkpoint."""
    if fault is not None:
        fault()
    dtype = np.float64 if execution.precision == "float64" else np.float32
    engine = TorchEngine(model, settings, execution)
    engine.load_parameters(start or oracle.parameters(model))
    if state is not None:
        engine.load_state(state)
    loop = Loop([share(_cast(batch, dtype), execution) for batch in batches])
    engine.train(loop)
    outcome = Outcome(loop.losses, engine.parameters(), engine.optimizer_state(), engine.statistics(), engine.state(),
                      engine.reduced_bytes(), loop.waited)
    engine.close()
    return outcome


def _cast(batch, dtype):
    masks = {name: mask.astype(dtype) for name, mask in batch.masks.items()}
    return Batch(batch.step, batch.x.astype(dtype), batch.labels, batch.learning_rate, masks)


def deviation(first, second):
    """The largest difference of two groups of arrays, each relative to the largest value of its array."""
    assert set(first) == set(second)
    worst = 0.0
    for name, value in first.items():
        assert value.shape == second[name].shape and value.dtype == second[name].dtype, name
        if not (np.isfinite(value).all() and np.isfinite(second[name]).all()):
            return float("inf")
        worst = max(worst, float(np.abs(value - second[name]).max() / max(np.abs(value).max(), 1e-3)))
    return worst
