from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path)
    yield opened
    opened.close()
