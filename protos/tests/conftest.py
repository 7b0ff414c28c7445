"""Makes tools/protos.py importable and gives tests a copy of the protos that they may spoil."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture
def protos_copy(tmp_path: Path) -> Path:
    """A copy of buf.yaml and the .proto files, to be changed."""
    target = tmp_path / "protos"
    shutil.copytree(ROOT / "protos" / "crosstrain", target / "crosstrain")
    shutil.copy(ROOT / "protos" / "buf.yaml", target)
    return target
