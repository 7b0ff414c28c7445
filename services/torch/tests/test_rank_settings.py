"""What a rank is told, which layers it gets, and what is refused."""

import socket
import subprocess
import sys

import oracle
import psutil
import pytest

from crosstrain_service.capabilities import UNSUPPORTED, features_of_execution, require
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import Convolution, Dense, Flatten, Pool, Relu
from crosstrain_service.parallel.horovod_settings import interface, place, serve
from crosstrain_service.testing import cnn2
from crosstrain_service.training import Execution, Parallel, Ranks
from crosstrain_torch import environment, refusal
from crosstrain_torch.communication import listen
from crosstrain_torch.engine import TorchEngine
from crosstrain_torch.horovod_backend import obstacle
from crosstrain_torch.partition import Division, divisions, stages


def test_one_host_talks_over_loopback():
    ranks = Ranks(rank=1, size=2, hosts=("10.0.0.1", "10.0.0.1"), ports=(5000, 5001),
                  rendezvous=("127.0.0.1", 5000), folder="/nowhere")
    found = environment("torch", Execution(parallel=Parallel(data=2), ranks=ranks), "/run")
    assert found["GLOO_SOCKET_IFNAME"] == "lo" and found["NCCL_SOCKET_IFNAME"] == "=lo"
    assert not any(name.startswith("HOROVOD") for name in found)
    assert "GLOO_SOCKET_IFNAME" not in environment("torch", Execution(), "/run")
    horovod = environment("torch", Execution(parallel=Parallel(data=2, backend="horovod"), ranks=ranks), "/run")
    assert horovod["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1" and horovod["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "5000"
    assert (horovod["HOROVOD_RANK"], horovod["HOROVOD_LOCAL_RANK"], horovod["HOROVOD_CROSS_SIZE"]) == ("1", "1", "1")
    assert "HOROVOD_FUSION_THRESHOLD" not in horovod


def test_several_hosts_talk_by_the_interface_of_their_address():
    name, address = next((name, entry.address) for name, entries in psutil.net_if_addrs().items() for entry in entries
                         if entry.family == socket.AF_INET)
    assert interface(address) == name
    ranks = Ranks(rank=0, size=2, members=2, hosts=(address, "192.0.2.7"), ports=(5000, 5001))
    assert environment("torch", Execution(parallel=Parallel(data=2), ranks=ranks), "/run")["GLOO_SOCKET_IFNAME"] == name
    with pytest.raises(CrosstrainError, match="no network interface here has the address 192.0.2.7"):
        interface("192.0.2.7")


def test_horovods_count_of_hosts():
    hosts = ("a", "a", "b", "c", "c")
    found = [place(hosts, rank) for rank in range(5)]
    assert found == [(0, 2, 0, 3), (1, 2, 0, 2), (0, 1, 1, 3), (0, 2, 2, 3), (1, 2, 1, 2)]


@pytest.mark.parametrize("kind", ["store", pytest.param("horovod", marks=pytest.mark.skipif(
    bool(obstacle()), reason=obstacle() or "built"))])
def test_a_meeting_place_listens_at_its_address_alone(kind):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listening = listen("127.0.0.1", port) if kind == "store" else serve("127.0.0.1", port)
    socket.create_connection(("127.0.0.1", port), 5).close()
    # The whole of 127/8 is this machine.
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", port), 5)
    if kind == "horovod":
        listening.shutdown()
        listening.server_close()
    else:
        listening.close()


def test_stages_are_balanced():
    model = cnn2()
    assert stages(model, 1) == [range(10)]
    # The second convolution costs most, and the first less than the dense layers.
    assert [[model.layers[number].name for number in stage] for stage in stages(model, 2)] == [
        ["conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "flatten"], ["dense1", "relu_dense1", "dense2"]]
    assert [stage.start for stage in stages(model, 4)] == [0, 3, 7, 9]
    assert stages(model, 5) is None


def test_divided_layers():
    layers = [
        Convolution("c", 5, (3, 3), (1, 1), (1, 1), (1, 1)), Relu("r"),
        Pool("p", "max", (2, 2), (2, 2), (0, 0), (0, 0)),
        Convolution("d", 4, (1, 1), (1, 1), (0, 0), (0, 0)), Flatten("f"), Dense("e", 6), Relu("s"), Dense("g", 3),
        Dense("h", 1),
    ]
    inputs = [(1, 4, 4), (5, 4, 4), (5, 4, 4), (5, 2, 2), (4, 2, 2), (16,), (6,), (6,), (3,)]
    assert divisions(layers, inputs, 2, False) == [
        Division((), "columns", (3, 2), (3, 2)), Division(output=(3, 2)), Division(output=(3, 2)),
        Division((3, 2), "columns", (2, 2), (2, 2)), Division(output=(8, 8)), Division(kind="rows", divided=(8, 8)),
        Division(), Division((), "columns", (2, 1), (2, 1)), Division(kind="rows", divided=(2, 1)),
    ]
    assert divisions(layers, inputs, 1, False) == [Division()] * len(layers)


def test_refusals():
    small, norms = cnn2((1, 8, 8), 4, (4, 6), 10), oracle.everything()
    settings = oracle.training(oracle.RULES["sgd"])

    def why(model, parallel=Parallel(), **execution):  # noqa: B008
        return refusal("torch", model, settings, Execution(parallel=parallel, **execution))

    for parallel in (Parallel(), Parallel(data=2), Parallel(tensor=3), Parallel(pipeline=4),
                     Parallel(data=2, backend="horovod")):
        assert why(small, parallel) == why(small, parallel, semantics="native") == ""
    assert "micro-batches" in why(norms, Parallel(pipeline=2))
    assert "5 ranks" in why(small, Parallel(pipeline=5))
    assert "accumulation_steps" in why(small, Parallel(pipeline=2), accumulation_steps=2)
    assert "accumulation_steps" in why(norms, accumulation_steps=2)
    assert why(norms, accumulation_steps=2, semantics="native") == ""
    assert "loss scaling" in why(small, Parallel(tensor=2), precision="mixed_float16")
    assert "data parallel ranks only" in why(small, Parallel(tensor=2, backend="horovod"))
    assert "torch.compile" in why(small, Parallel(data=2), compiler="torch.compile")
    assert "GPUs only" in why(norms, Parallel(data=2), semantics="native")
    assert why(norms, Parallel(data=2, local_batch_norm=True), semantics="native") == ""
    assert why(norms, Parallel(data=2), semantics="native", device="cuda") == ""
    assert "native semantics" in why(norms, Parallel(data=2, local_batch_norm=True))


def test_declared(monkeypatch):
    features = TorchEngine.info().features
    for parallel in (Parallel(data=4, bucket_mib=1), Parallel(tensor=2), Parallel(data=2, tensor=2),
                     Parallel(data=2, pipeline=2), Parallel(tensor=2, pipeline=2)):
        for precision in ("mixed_float16", "mixed_bfloat16", "float64"):
            needed = features_of_execution(Execution(parallel=parallel, precision=precision, accumulation_steps=2))
            require("torch", features, needed)
    assert features["parallel.mpi"].support == UNSUPPORTED
    # Without Horovod the engine says so.
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    assert "Horovod" in TorchEngine.info().features["parallel.horovod"].note


def test_the_package_needs_no_pytorch_to_refuse():
    code = "import sys, crosstrain_torch as c; c.refusal; assert not {'torch', 'horovod'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
