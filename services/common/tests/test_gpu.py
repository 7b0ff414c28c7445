"""The GPU meter against a double of NVML: no GPU is used here, only the calls that are made."""

import sys
import types

import pytest

from crosstrain_service import gpu


class FakeNvml(types.ModuleType):
    """A double of the module pynvml with two GPUs; calls named in ``failing`` raise as NVML does."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        super().__init__("pynvml")
        self.failing = set()
        self.opened = 0
        self.processes = [types.SimpleNamespace(pid=10, usedGpuMemory=100),
                          types.SimpleNamespace(pid=11, usedGpuMemory=None),
                          types.SimpleNamespace(pid=12, usedGpuMemory=30)]

    def _call(self, name, value):
        if name in self.failing:
            raise self.NVMLError(name)
        return value

    def nvmlInit(self):
        self._call("nvmlInit", None)
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self):
        return b"570.1"

    def nvmlDeviceGetCount(self):
        return self._call("nvmlDeviceGetCount", 2)

    def nvmlDeviceGetHandleByIndex(self, index):
        assert type(index) is int
        return self._call("nvmlDeviceGetHandleByIndex", ("index", index))

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return ("uuid", uuid)

    def nvmlDeviceGetName(self, handle):
        return "Double %d" % handle[1]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return self._call("nvmlDeviceGetMemoryInfo", types.SimpleNamespace(total=1000, used=500))

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self._call("nvmlDeviceGetComputeRunningProcesses", self.processes)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return self._call("nvmlDeviceGetUtilizationRates", types.SimpleNamespace(gpu=42, memory=1))


@pytest.fixture
def nvml(monkeypatch):
    double = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", double)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return double


def test_gpus_are_listed_and_nvml_is_closed_again(nvml):
    assert gpu.gpus() == [gpu.Gpu(0, "Double 0", 1000, "570.1"), gpu.Gpu(1, "Double 1", 1000, "570.1")]
    assert nvml.opened == 0


def test_without_a_driver_there_is_no_gpu(nvml):
    nvml.failing = {"nvmlInit"}
    assert gpu.gpus() == [] and gpu.meter("cuda", 0) is None and gpu.meter("cpu", 0) is None


def test_memory_is_that_of_the_processes_or_of_the_device(nvml):
    meter = gpu.meter("cuda", 1)
    assert meter.memory_bytes([10, 11]) == 100 and meter.memory_bytes(iter([10, 12])) == 130
    assert meter.memory_bytes([99]) == 500  # ids of another namespace
    assert meter.utilization_percent() == 42.0


def test_what_nvml_does_not_give_is_none(nvml):
    meter = gpu.meter("cuda", 0)
    nvml.failing = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses"}
    assert meter.utilization_percent() is None and meter.memory_bytes([10]) is None
    nvml.failing = {"nvmlDeviceGetHandleByIndex"}
    assert gpu.meter("cuda", 0) is None


@pytest.mark.parametrize("visible, index, handle", [
    ("", 1, ("index", 1)), ("1", 0, ("index", 1)), ("3, 1", 1, ("index", 1)), ("2", 2, ("index", 2)),
    ("GPU-abc", 0, ("uuid", "GPU-abc")), ("0,MIG-1", 1, ("uuid", "MIG-1"))])
def test_meter_measures_the_gpu_that_cuda_shows(nvml, monkeypatch, visible, index, handle):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.GpuMeter(index)._handle == handle


def test_the_sampler_shows_all_gpus_as_described(nvml):
    assert gpu.GpuSampler().sample() == [
        gpu.GpuSample("cuda:%d" % index, 500, 1000, 0.42) for index in range(2)]


def test_the_sampler_leaves_out_what_nvml_does_not_give(nvml):
    nvml.failing.add("nvmlDeviceGetUtilizationRates")
    assert [sample.utilization for sample in gpu.GpuSampler().sample()] == [None, None]
    nvml.failing.add("nvmlDeviceGetMemoryInfo")
    assert gpu.GpuSampler().sample() == []
    nvml.failing.add("nvmlInit")
    assert gpu.GpuSampler().sample() == []
