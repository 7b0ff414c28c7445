"""Use of memory and processor: one definition, never a failed run."""

import os
import subprocess
import sys
import time

import numpy as np
import psutil

from crosstrain_service import telemetry
from crosstrain_service.events import EventLog
from crosstrain_service.spool import SpoolReader, SpoolWriter
from crosstrain_service.telemetry import Telemetry


def log(folder):
    return EventLog(SpoolWriter(str(folder / "spool")), "run", 1)


class Meter:
    """A double of the GPU meter that gives the listed values, None where NVML gives none."""

    def __init__(self, memory, utilization):
        self.memory, self.utilization = list(memory), list(utilization)

    def memory_bytes(self, processes):
        return self.memory.pop(0)

    def utilization_percent(self):
        return self.utilization.pop(0)


def test_peak_keeps_what_was_freed(tmp_path):
    measured = Telemetry(log(tmp_path))
    measured.start()
    block = np.ones(8 << 20)
    high = measured.sample()
    size = block.nbytes
    del block
    low = measured.sample()
    measured.stop()
    assert high.memory_bytes - low.memory_bytes > size // 2
    assert low.memory_peak_bytes >= high.memory_bytes and low.memory_after_import_bytes > 0
    assert 0 < high.cpu_seconds <= low.cpu_seconds
    assert not low.HasField("gpu_memory_peak_bytes") and measured.utilization_median() is None


def test_peak_without_the_systems_own_is_the_largest_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(telemetry, "peak_resident_bytes", lambda: psutil.Process().memory_info().rss)
    measured = Telemetry(log(tmp_path))
    block = np.ones(8 << 20)
    high = measured.sample().memory_bytes
    del block
    assert measured.sample().memory_peak_bytes >= high


def test_ranks_are_counted(tmp_path):
    measured = Telemetry(log(tmp_path))
    alone = measured.sample()
    rank = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
                            stdout=subprocess.PIPE)
    rank.stdout.readline()
    both = measured.sample()
    rank.kill()
    rank.wait()
    rank.stdout.close()
    assert both.memory_bytes > alone.memory_bytes and both.memory_peak_bytes >= both.memory_bytes
    assert measured.sample().memory_peak_bytes >= both.memory_bytes


def test_ranks_are_counted_whoever_has_started_them(tmp_path):
    """Under mpiexec every rank has a parent of its own."""
    rank = "x = bytearray(64 << 20); print(flush=True); input()"
    started = ("import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', %r], stdin=subprocess.PIPE, "
               "stdout=subprocess.PIPE); child.stdout.readline(); print(child.pid, flush=True); input()" % rank)
    parent = subprocess.Popen([sys.executable, "-c", started], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    (tmp_path / "rank-0.pid").write_text(str(os.getpid()))
    (tmp_path / "rank-1.pid").write_text(str(pid))
    (tmp_path / "rank-2.pid.incoming").write_text("")
    both = Telemetry(log(tmp_path), None, str(tmp_path)).sample()
    own, other = (psutil.Process(number).memory_info().rss for number in (os.getpid(), pid))
    parents = psutil.Process(parent.pid).memory_info().rss
    psutil.Process(pid).kill()
    parent.communicate(b"\n")
    # This process has another child here: the rank's parent. It counts as what a rank has started.
    assert abs(both.memory_bytes - (own + other + parents)) < 8 << 20 and other > 64 << 20


def test_gpu_values_that_are_missing_stay_unset(tmp_path):
    measured = Telemetry(log(tmp_path), Meter([100, None, 70, 300], [10.0, None, 90.0, 30.0]))
    samples = [measured.sample() for _ in range(4)]
    assert [item.gpu_memory_peak_bytes for item in samples] == [100, 0, 100, 300]
    assert [item.HasField("gpu_utilization_percent") for item in samples] == [True, False, True, True]
    assert not samples[1].HasField("gpu_memory_peak_bytes") and measured.utilization_median() == 30.0


def test_samples_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(telemetry, "SAMPLE_SECONDS", 0.01)
    measured = Telemetry(log(tmp_path))
    measured.start()
    deadline = time.time() + 10
    while not SpoolReader(str(tmp_path / "spool")).read() and time.time() < deadline:
        time.sleep(0.01)
    measured.stop()
    assert SpoolReader(str(tmp_path / "spool")).read()
