"""The document of the conventions is up to date and complete."""

from __future__ import annotations

from pathlib import Path

from crosstrain.compare.causes import CONVENTIONS
from crosstrain.compare.causes.document import document

ROOT = Path(__file__).resolve().parents[4]


def test_document_is_up_to_date() -> None:
    written = (ROOT / "docs" / "conventions.md").read_text(encoding="utf-8")
    assert written == document(), "run python3.11 tools/run.py -m crosstrain.compare.causes.document"


def test_every_convention_is_described() -> None:
    text = document()
    for item in CONVENTIONS:
        assert f"`{item.id}`" in text
        for part in (item.title, item.says, item.found_in, item.restore):
            assert len(part) > 2 and "\n" not in part
        assert item.says.endswith(".") and item.found_in.endswith(".") and item.restore.endswith(".")
        assert item.vary
