from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.databases import postgres, url
from doubles.world import World

__all__ = ["postgres", "url", "world"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path)
    yield opened
    opened.close()
