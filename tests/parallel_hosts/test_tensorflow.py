"""TensorFlow over two hosts: ``MultiWorkerMirroredStrategy``, and Horovod."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .checks import check_loss, check_parity, check_stores
from .network import Network
from .platform import Platform, document, started


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[Platform]:
    with started(tmp_path_factory.mktemp("tensorflow"), network, "tensorflow-2.21") as platform:
        yield platform


def test_two_hosts_compute_what_one_rank_computes(tensorflow: Platform) -> None:
    check_parity(tensorflow, "native", ["tensorflow", "tensorflow[data=1]"], 1e-10)


def test_horovod_computes_what_one_rank_computes(tensorflow: Platform) -> None:
    tensorflow.require("tensorflow", "parallel.horovod")
    check_parity(tensorflow, "horovod", ["tensorflow[backend=horovod]", "tensorflow[data=1]"], 1e-10)


def test_a_killed_rank_is_reported(tensorflow: Platform) -> None:
    run = tensorflow.create(document("tensorflow", epochs=100, data=2), "lost")
    tensorflow.await_steps("lost", 20)
    check_loss(tensorflow, "lost", run, 500)


def test_horovods_store_is_out_of_reach_and_a_killed_rank_is_reported(tensorflow: Platform) -> None:
    tensorflow.require("tensorflow", "parallel.horovod")
    run = tensorflow.create(document("'tensorflow[backend=horovod]'", epochs=400, data=2), "lost-horovod")
    tensorflow.await_steps("lost-horovod", 20)
    check_stores(tensorflow, "horovod")
    check_loss(tensorflow, "lost-horovod", run, 2000)
