"""The reference engine, data parallel: rank 0 adds gradients over TCP, at the place where frameworks meet."""

import os
import signal
import time
from multiprocessing.connection import Client, Listener

import numpy as np

from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service.capabilities import EXACT, Feature
from crosstrain_service.engine import EngineInfo, Intermediates
from crosstrain_service.parallel import progress

KEY = b"of the test"


class RanksEngine(ReferenceEngine):
    """Takes 10 ms more per step, so that a run can be interrupted."""

    name = "ranks"

    @classmethod
    def info(cls):
        known = super().info()
        features = dict(known.features)
        for name in ("parallel.data", "parallel.native", "parallel.hosts"):
            features[name] = Feature(EXACT)
        return EngineInfo(cls.name, known.version, features, known.libraries)

    def __init__(self, model, training, execution):
        super().__init__(model, training, execution)
        self._ranks = ranks = execution.ranks
        assert os.environ["TEST_RANK"] == str(ranks.rank)
        self._peers = []
        self._reduced = 0
        if ranks.size > 1:
            address = ranks.rendezvous
            if ranks.rank == 0:
                with Listener(address, backlog=8, authkey=KEY) as listener:
                    self._peers = [listener.accept() for _ in range(ranks.size - 1)]
            else:
                deadline = time.time() + 30
                while not self._peers:
                    try:
                        self._peers = [Client(address, authkey=KEY)]
                    except ConnectionError:
                        assert time.time() < deadline
                        time.sleep(0.02)

    def _summed(self, array):
        """The sum over all ranks."""
        progress.joins()
        if self._ranks.rank == 0:
            for peer in self._peers:
                array = array + np.frombuffer(peer.recv_bytes(), array.dtype).reshape(array.shape)
            for peer in self._peers:
                peer.send_bytes(array.tobytes())
            return array
        self._peers[0].send_bytes(array.tobytes())
        return np.frombuffer(self._peers[0].recv_bytes(), array.dtype).reshape(array.shape)

    def _step(self, batch):
        time.sleep(0.01)
        result = self._network.loss_and_gradients(batch.x, batch.labels, self._parameters, batch.masks)
        gradients = {name: value * batch.part for name, value in result.gradients.items()}
        if self._ranks.size > 1:
            gradients = {name: self._summed(value) for name, value in gradients.items()}
            self._reduced += sum(value.nbytes for value in gradients.values())
        self._updates += 1
        self._parameters, self._state = self._optimizer.update(
            self._parameters, gradients, self._state, batch.learning_rate, self._updates)
        return float(result.loss)

    def intermediates(self, batch):
        found = super().intermediates(batch)

        def part(arrays):
            return {name: value * batch.part for name, value in arrays.items()}

        return Intermediates(found.loss, found.outputs, part(found.output_gradients), part(found.gradients))

    def reduced_bytes(self):
        return self._reduced


class OneProcessEngine(RanksEngine):
    """Drives all ranks of a host from one process."""

    name = "one-process"


class RaisingEngine(RanksEngine):
    """Rank 1 raises at step 3."""

    name = "raising-rank"

    def _step(self, batch):
        if batch.step == 3 and self._ranks.rank == 1:
            raise RuntimeError("kernel image is invalid")
        return super()._step(batch)


class KilledEngine(RanksEngine):
    """Rank 1 is killed at step 7 of the first attempt."""

    name = "killed-rank"

    def _step(self, batch):
        if batch.step == 7 and self._ranks.rank == 1 and self._ranks.size == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(batch)


class DriftingEngine(RanksEngine):
    """Rank 1 changes its parameters by itself after step 4."""

    name = "drifting-rank"

    def _step(self, batch):
        found = super()._step(batch)
        if batch.step == 4 and self._ranks.rank == 1:
            self.load_parameters({name: value + (name == "dense2.bias") for name, value in self.parameters().items()})
        return found


def first_time(name):
    """Whether no process was here before: what hangs once goes on when it is started again."""
    try:
        os.close(os.open(os.path.join(os.environ["TEST_FOLDER"], name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class HangingEngine(RanksEngine):
    """The last rank hangs once, at step 12."""

    name = "hanging-rank"

    def _step(self, batch):
        if batch.step == 12 and self._ranks.rank == self._ranks.size - 1 and first_time("hung"):
            while True:
                time.sleep(0.1)
        return super()._step(batch)


class LeavingEngine(RanksEngine):
    """Rank 1 leaves a process of its own behind at step 3, where the launcher is killed once."""

    name = "leaving-rank"

    def _step(self, batch):
        if batch.step == 3 and self._ranks.rank == 1 and first_time("left"):
            if os.fork() == 0:
                time.sleep(120)
                os._exit(0)
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        return super()._step(batch)


class MismatchedEngine(RanksEngine):
    """Rank 1 waits at step 2 for a sum that it has given nothing to."""

    name = "mismatched-ranks"

    def _step(self, batch):
        if batch.step == 2 and self._ranks.rank == 1:
            progress.joins()
            self._peers[0].recv_bytes()
        return super()._step(batch)


class SlowStartEngine(RanksEngine):
    """The first step takes two seconds, as with a compiler."""

    name = "slow-start"

    def _step(self, batch):
        if batch.step == 0:
            time.sleep(2)
        return super()._step(batch)
