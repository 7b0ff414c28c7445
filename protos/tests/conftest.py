"""Loads tools/protos.py for the tests and gives them a copy of the protos that they may spoil."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "coordinator" / "src"), str(ROOT / "protos" / "python")]


def _load_tool() -> None:
    # Not by its file name: pytest's importlib mode has a module "protos" for this folder's parent.
    spec = importlib.util.spec_from_file_location("protos_tool", ROOT / "tools" / "protos.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["protos_tool"] = module
    spec.loader.exec_module(module)


_load_tool()


@pytest.fixture
def protos_copy(tmp_path: Path) -> Path:
    """A copy of buf.yaml and the .proto files, to be changed."""
    target = tmp_path / "protos"
    shutil.copytree(ROOT / "protos" / "crosstrain", target / "crosstrain")
    shutil.copy(ROOT / "protos" / "buf.yaml", target)
    return target
