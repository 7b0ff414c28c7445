"""The platform, started once, and data that jobs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crosstrain_protos.v1 import data_pb2

from . import inputs
from .platform import ENGINES, Platform


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    started = Platform(tmp_path_factory.mktemp("e2e"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def available(platform: Platform) -> Callable[..., list[str]]:
    """Skips a test, with the reason, unless all the engines it names (by default all three) run here."""

    def require(*engines: str) -> list[str]:
        wanted = list(engines or ENGINES)
        missing = [platform.unavailable[engine] for engine in wanted if engine in platform.unavailable]
        if missing:
            pytest.skip("; ".join(missing))
        return wanted

    return require


@pytest.fixture(scope="session")
def files(platform: Platform) -> tuple[Path, Path]:
    """train.csv and test.csv in the coordinator's data directory."""
    return inputs.write_digits(platform.data_dir / "digits")


@pytest.fixture(scope="session")
def digits(
    platform: Platform, files: tuple[Path, Path]
) -> tuple[data_pb2.Dataset | None, data_pb2.Dataset | None]:
    """The same digits, stored at the coordinator."""
    return platform.send(*files)
