"""Memory, processor and GPU use of a run, sampled in a thread of its own.

Memory has one definition for every engine: peak resident memory of the child process and
its ranks, with the value after the framework was imported beside it.
"""

import statistics
import threading
from typing import List, Optional

import psutil

from crosstrain_protos.v1 import run_pb2

from .events import EventLog
from .gpu import GpuMeter
from .parallel.watch import noted_pids

SAMPLE_SECONDS = 0.5
#: Every so many samples one is reported, and the processes of the run are looked for anew: that takes a look at all
#: processes of the machine.
REPORT_EVERY = 4


def peak_resident_bytes() -> int:
    """Peak resident memory of this process so far, bytes (VmHWM on Linux)."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(psutil.Process().memory_info().rss)


class Telemetry:
    """Samples until it is stopped and reports through the run's events."""

    def __init__(self, events: EventLog, gpu: Optional[GpuMeter] = None, folder: str = "") -> None:
        """``folder``: where the ranks of this host note their processes, if there are several."""
        self._events = events
        self._gpu = gpu
        self._process = psutil.Process()
        self._folder = folder
        self._after_import = 0
        self._peak = 0
        self._ranks_peak = 0
        self._gpu_peak = 0
        self._others: List[psutil.Process] = []
        self._utilization: List[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Takes the present resident memory as the value after import, and begins to sample."""
        self._after_import = self._process.memory_info().rss
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._stop.wait(SAMPLE_SECONDS):
            sample = self.sample(search=count % REPORT_EVERY == 0)
            count += 1
            if count % REPORT_EVERY == 0:
                try:
                    self._events.emit(resources=sample)
                except OSError:  # a full disk is reported by the training thread
                    return

    def sample(self, search: bool = True) -> run_pb2.ResourceSample:
        """The present values; unless told to ``search``, of the processes that were there before."""
        resident = self._process.memory_info().rss
        # Where the system keeps no peak, the largest sample is the best that is known.
        self._peak = max(self._peak, resident, peak_resident_bytes())
        ranks = 0
        pids = [self._process.pid]
        if search:
            self._search()
        for child in self._others:
            try:
                ranks += child.memory_info().rss
                pids.append(child.pid)
            except psutil.Error:
                continue
        self._ranks_peak = max(self._ranks_peak, ranks)
        times = self._process.cpu_times()
        sample = run_pb2.ResourceSample(
            memory_bytes=resident + ranks, memory_peak_bytes=self._peak + self._ranks_peak,
            memory_after_import_bytes=self._after_import, cpu_seconds=times.user + times.system)
        if self._gpu is not None:
            used = self._gpu.memory_bytes(pids)
            if used is not None:
                self._gpu_peak = max(self._gpu_peak, used)
                sample.gpu_memory_peak_bytes = self._gpu_peak
            utilization = self._gpu.utilization_percent()
            if utilization is not None:
                self._utilization.append(utilization)
                sample.gpu_utilization_percent = utilization
        return sample

    def _search(self) -> None:
        try:
            ranks = [psutil.Process(pid) for pid in noted_pids(self._folder)] if self._folder else [self._process]
            found = {process.pid: process for rank in ranks for process in [rank] + rank.children(recursive=True)}
        except (psutil.Error, OSError):  # a process that ends while the list is made
            return
        found.pop(self._process.pid, None)
        self._others = list(found.values())

    def utilization_median(self) -> Optional[float]:
        """Median GPU utilisation over the samples, percent; None without a GPU."""
        return statistics.median(self._utilization) if self._utilization else None

    def stop(self) -> None:
        """Ends sampling."""
        self._stop.set()
        self._thread.join()
