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
    """Samples memory of our processes and utilisation of one GPU.

    What NVML does not give (utilisation of a MIG instance, for example) is None, never an error.
    """

    def __init__(self, index: int) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        name = _visible(index)
        if name.isdigit():
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(int(name))
        else:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(name)

    def memory_bytes(self, processes: Iterable[int]) -> Optional[int]:
        """GPU memory held by the given processes, bytes.

        Inside a container NVML reports process ids of the host, which cannot be matched; all memory
        in use on the device is taken then, since one run at a time uses it.
        """
        wanted = set(processes)
        used = 0
        try:
            for entry in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
                if entry.pid in wanted and entry.usedGpuMemory is not None:
                    used += int(entry.usedGpuMemory)
            return used or int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except self._nvml.NVMLError:
            return None

    def utilization_percent(self) -> Optional[float]:
        """Share of the last sampling period with a kernel running, percent."""
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except self._nvml.NVMLError:
            return None


def _visible(index: int) -> str:
    """Number or UUID of the GPU that CUDA shows this process under ``index``."""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    if index < len(visible) and (visible[index].isdigit() or visible[index].startswith(("GPU-", "MIG-"))):
        return visible[index]
    return str(index)


def meter(device: str, index: int) -> Optional[GpuMeter]:
    """A meter for a "cuda" device; None for others, and where NVML cannot be used: training goes on without."""
    if device != "cuda":
        return None
    try:
        return GpuMeter(index)
    except Exception:  # no library, no driver, or a GPU that NVML does not show
        return None


class GpuSample(NamedTuple):
    """The present use of one GPU: memory in bytes, utilisation from 0 to 1 where NVML gives it."""

    name: str
    memory_used: int
    memory_size: int
    utilization: Optional[float]


class GpuSampler:
    """Asks for the present use of all GPUs of the machine; a machine without a driver has none."""

    def __init__(self) -> None:
        self._nvml: Any = None
        try:
            import pynvml
            pynvml.nvmlInit()
            self._nvml = pynvml
        except Exception:  # no library or no driver
            pass

    def sample(self) -> List[GpuSample]:
        """One entry per GPU, named as in ``Describe``; what cannot be asked is left out."""
        found: List[GpuSample] = []
        if self._nvml is None:
            return found
        try:
            for index in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                try:
                    utilization: Optional[float] = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0
                except self._nvml.NVMLError:  # a MIG instance, for example
                    utilization = None
                found.append(GpuSample("cuda:%d" % index, int(memory.used), int(memory.total), utilization))
        except self._nvml.NVMLError:
            pass
        return found
