from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A real coordinator with its judging process; the services are fake, their probes the reference engine's."""
    opened = World(tmp_path)
    yield opened
    opened.close()
