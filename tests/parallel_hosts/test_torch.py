"""PyTorch over two hosts, with Gloo between the namespaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .checks import check_loss, check_parity, check_stores
from .network import Network
from .platform import Platform, document, started


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[Platform]:
    with started(tmp_path_factory.mktemp("torch"), network, "torch") as platform:
        yield platform


def test_two_hosts_compute_what_one_rank_computes(torch: Platform) -> None:
    check_parity(torch, "native", ["torch", "torch[data=1]"], 1e-10)


def test_horovod_computes_what_one_rank_computes(torch: Platform) -> None:
    torch.require("torch", "parallel.horovod")
    check_parity(torch, "horovod", ["torch[backend=horovod]", "torch[data=1]"], 1e-10)


@pytest.mark.parametrize(("backend", "store"), [("native", "torch"), ("horovod", "horovod")])
def test_the_store_is_out_of_reach_and_a_killed_rank_is_reported(torch: Platform, backend: str, store: str) -> None:
    torch.require("torch", f"parallel.{backend}")
    name = f"lost-{backend}"
    run = torch.create(document(f"'torch[backend={backend}]'", epochs=400, data=2), name)
    torch.await_steps(name, 20)
    check_stores(torch, store)
    check_loss(torch, name, run, 2000)
