"""NVIDIA GPUs by NVML. Written from NVML's documentation; untested until it has run on a GPU."""

import os
from typing import Any, Iterable, List, NamedTuple, Optional


class Gpu(NamedTuple):
    """One GPU: index as CUDA numbers it under PCI_BUS_ID order, name, memory in bytes, driver."""

    index: int
    name: str
    memory_bytes: int
    driver: str


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def gpus() -> List[Gpu]:
    """The GPUs of this machine; empty without a driver."""
    try:
        import pynvml
        pynvml.nvmlInit()
    except Exception:  # no library or no driver: there is no GPU to use
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
            found.append(Gpu(index, _text(pynvml.nvmlDeviceGetName(handle)), int(memory), driver))
        return found
    finally:
        pynvml.nvmlShutdown()


class GpuMeter:
    """Samples memory of our processes and utilisation of one GPU."""

    def __init__(self, index: int) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(_physical(index))

    def memory_bytes(self, processes: Iterable[int]) -> int:
        """GPU memory held by the given processes, bytes.

        Inside a container NVML reports process ids of the host, which cannot be matched; all memory
        in use on the device is taken then, since one run at a time uses it.
        """
        wanted = set(processes)
        used = 0
        for entry in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
            if entry.pid in wanted and entry.usedGpuMemory is not None:
                used += int(entry.usedGpuMemory)
        return used or int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def utilization_percent(self) -> float:
        """Share of the last sampling period with a kernel running, percent."""
        return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)


def _physical(index: int) -> int:
    visible = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    if index < len(visible) and visible[index].strip().isdigit():
        return int(visible[index])
    return index


def meter(device: str, index: int) -> Optional[GpuMeter]:
    """A meter for a "cuda" device, None for others."""
    return GpuMeter(index) if device == "cuda" else None
