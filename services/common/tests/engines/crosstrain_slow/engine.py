"""The reference engine, made slow or made to fail in one way each."""

import os
import signal
import sys
import time

from crosstrain_reference.engine import ReferenceEngine


class SlowEngine(ReferenceEngine):
    """Takes 20 ms more per step, so that a run can be interrupted."""

    name = "slow"

    def _step(self, batch):
        time.sleep(0.02)
        return super()._step(batch)


class CrashingEngine(ReferenceEngine):
    """Aborts at step 3, as a failed check in native code does."""

    name = "crashing"

    def _step(self, batch):
        if batch.step == 3:
            print("Check failed: blob shape 3 == 4", file=sys.stderr)
            sys.stderr.flush()
            os.abort()
        return super()._step(batch)


class OrphaningEngine(ReferenceEngine):
    """Is killed at step 3 and leaves a process of its own behind."""

    name = "orphaning"

    def _step(self, batch):
        if batch.step == 3:
            if os.fork() == 0:
                time.sleep(120)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(batch)


class RaisingEngine(ReferenceEngine):
    """Raises at step 3."""

    name = "raising"

    def _step(self, batch):
        if batch.step == 3:
            raise RuntimeError("kernel image is invalid\nsecond line")
        return super()._step(batch)


class DivergingEngine(ReferenceEngine):
    """Reports a loss that is not a number at step 5."""

    name = "diverging"

    def _step(self, batch):
        loss = super()._step(batch)
        return float("nan") if batch.step == 5 else loss


class StubbornEngine(SlowEngine):
    """Ignores the polite signal and has a child of its own."""

    name = "stubborn"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(120)
            os._exit(0)
