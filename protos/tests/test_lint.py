"""buf's rules hold, and each of them would notice a violation."""

from __future__ import annotations

import re
from pathlib import Path

import protos_tool as protos
import pytest


def test_protos_follow_the_rules() -> None:
    protos.lint()


def test_protos_are_compatible_with_the_last_release() -> None:
    protos.breaking()


@pytest.mark.parametrize(
    ("comment", "kind"),
    [
        ("// Number of samples N.", "Field"),
        ("// Trains.", "Enum value"),
        ("// Where a run stands.", "Enum"),
        ("// Returns a run as it stands.", "RPC"),
        ("// What happened; exactly one is set.", "Oneof"),
        ("// Stores and serves immutable", "Service"),
        ("// A decoded data set", "Message"),
    ],
)
def test_missing_comment_is_found(protos_copy: Path, comment: str, kind: str) -> None:
    """Everything in the API is explained: removing any comment fails the lint."""
    changed = 0
    for file in (protos_copy / "crosstrain" / "v1").iterdir():
        text = file.read_text()
        # The whole block: buf accepts a comment of which one line is left.
        text, count = re.subn(r"^ *" + re.escape(comment) + r".*\n( *//.*\n)*", "", text, flags=re.MULTILINE)
        file.write_text(text)
        changed += count
    assert changed >= 1
    with pytest.raises(protos.ToolError, match=rf'{kind} ".*" should have a non-empty comment'):
        protos.lint(protos_copy)


def test_wrong_style_is_found(protos_copy: Path) -> None:
    _replace(protos_copy, "data.proto", "int64 samples = 3;", "int64 sampleCount = 3;")
    with pytest.raises(protos.ToolError, match="lower_snake_case"):
        protos.lint(protos_copy)


def test_wrong_formatting_is_found(protos_copy: Path) -> None:
    _replace(protos_copy, "data.proto", "int64 samples = 3;", "int64   samples = 3;")
    with pytest.raises(protos.ToolError, match="samples"):
        protos.lint(protos_copy)


@pytest.mark.parametrize(
    ("file", "old", "new", "finding"),
    [
        ("data.proto", "int64 samples = 3;", "int64 samples = 9;", "Previously present field"),
        ("data.proto", "int64 samples = 3;", "int32 samples = 3;", "changed type"),
        ("training.proto", "optional double momentum = 1;", "double momentum = 1;", "changed cardinality"),
        ("errors.proto", "ERROR_REASON_WRONG_STATE = 23;", "ERROR_REASON_STATE = 23;", "changed name"),
        ("service.proto", "returns (stream WatchRunResponse)", "returns (WatchRunResponse)", "stream"),
    ],
)
def test_breaking_change_is_found(protos_copy: Path, file: str, old: str, new: str, finding: str) -> None:
    _replace(protos_copy, file, old, new)
    with pytest.raises(protos.ToolError, match=finding):
        protos.breaking(protos_copy)


def test_compatible_change_is_allowed(protos_copy: Path) -> None:
    _replace(
        protos_copy,
        "data.proto",
        "double divisor = 6;",
        "double divisor = 6;\n  // More.\n  int32 extra = 7;",
    )
    protos.breaking(protos_copy)
    protos.lint(protos_copy)


def _replace(folder: Path, name: str, old: str, new: str) -> None:
    file = folder / "crosstrain" / "v1" / name
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
