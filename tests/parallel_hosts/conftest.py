"""The network of all tests here, and the platform with the runtime's own test engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .network import Network, network_or_skip
from .platform import Platform


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    opened = network_or_skip()
    yield opened
    opened.close()


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[Platform]:
    """Two services of the test engine, for the tests of several files."""
    started = Platform(tmp_path_factory.mktemp("hosts"), network)
    yield started
    started.close()
