"""What can be seen of Caffe's own communication without a GPU: how ranks meet, and what the solver calls."""

import ctypes
import threading

import caffe
import pytest

import crosstrain_caffe
from crosstrain_caffe import nccl
from crosstrain_caffe.engine import CaffeEngine
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.testing import cnn2
from crosstrain_service.training import Execution, Parallel, Ranks

#: As NCCL makes them: with zero bytes inside, which a C string would end at.
IDENTIFIER = b"\xd7z\xed\xa8\x1ff\xe5P\x02\x00\x8b=\x7f\x00\x00\x01" + bytes(112)


class Library:
    """NCCL's function."""

    def __init__(self, status=0):
        self._status = status

    def ncclGetUniqueId(self, buffer):  # noqa: N802
        ctypes.memmove(buffer, IDENTIFIER, len(IDENTIFIER))
        return self._status


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(nccl.ctypes, "CDLL", lambda name: Library())


def test_all_ranks_get_the_whole_identifier(library, tmp_path):
    found = {}

    def come(rank):
        found[rank] = nccl.meet(Ranks(rank=rank, size=3, folder=str(tmp_path)), 0)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == dict.fromkeys(range(3), IDENTIFIER)


def test_a_later_engine_of_the_process_meets_anew(library, tmp_path):
    nccl.meet(Ranks(size=2, folder=str(tmp_path)), 0)
    nccl.meet(Ranks(size=2, folder=str(tmp_path)), 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nccl-0", "nccl-1"]


def test_nobody_waits_for_ever(monkeypatch, tmp_path):
    monkeypatch.setattr(nccl, "MEET_SECONDS", 0.1)
    with pytest.raises(CrosstrainError, match="rank 0 gave no NCCL identifier"):
        nccl.meet(Ranks(rank=1, size=2, folder=str(tmp_path)), 0)


@pytest.mark.parametrize("library", [Library(status=2), object()])
def test_an_nccl_that_cannot_be_used_is_named(monkeypatch, library):
    monkeypatch.setattr(nccl.ctypes, "CDLL", lambda name: library)
    with pytest.raises(CrosstrainError, match=r"ncclGetUniqueId|NCCL cannot be used"):
        nccl.unique_id()


class Solver:
    """What a solver is asked for."""

    def __init__(self, net):
        self.net = net
        self.callbacks = []

    def add_callback(self, *callback):
        self.callbacks.append(callback)


class Communicator:
    """Caffe's NCCL: notes the numbers that it is made with."""

    def __init__(self, solver, identifier):
        self.made = (caffe.solver_count(), caffe.solver_rank(), identifier)
        self.sent = 0

    def bcast(self):
        self.sent += 1


class Timer:
    ms = 2.5

    def start(self):
        pass

    stop = start


def test_gradients_are_added_up_between_backward_pass_and_update(monkeypatch, library, tmp_path):
    monkeypatch.setattr(caffe, "NCCL", Communicator)
    monkeypatch.setattr(caffe, "Timer", Timer)
    path = tmp_path / "net.prototxt"
    path.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }'
        'layer { name: "dense" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 } }'
    )
    solver = Solver(caffe.Net(str(path), caffe.TRAIN))
    sums = nccl.NcclSums(solver, Ranks(rank=0, size=2, folder=str(tmp_path)))
    communicator = solver.callbacks[1][0]
    assert communicator.made == (2, 0, IDENTIFIER) and communicator.sent == 1
    # Otherwise Caffe would divide by the number of ranks what is already a part, and refuse snapshots.
    assert (caffe.solver_count(), caffe.solver_rank()) == (1, 0)
    assert sums.take_seconds() == 0
    for callback in (solver.callbacks[0], solver.callbacks[2]):
        callback[1]()
    assert sums.take_seconds() == pytest.approx(0.0025)
    assert sums.bytes == 4 * (3 * 4 + 4)


def test_refused_on_a_cpu():
    native = Execution(parallel=Parallel(data=2, backend="native"))
    assert "between GPUs" in crosstrain_caffe.refusal("caffe", cnn2(), None, native)
    features = CaffeEngine.info().features
    assert features["parallel.native"].support == "unsupported"
    assert "NCCL" in features["parallel.native"].note
    variables = crosstrain_caffe.environment("caffe", Execution(device="cuda", parallel=native.parallel), "/run")
    assert variables["NCCL_SOCKET_IFNAME"] == "lo" and "UCX_TLS" not in variables
