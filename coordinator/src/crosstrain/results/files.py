"""Writes the files of a results folder: aside first, then in place; CSV that spreadsheets cannot run."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from crosstrain_service.errors import CrosstrainError

SUMMARY = "summary.json"
#: A text that begins so is a formula to spreadsheets.
_FORMULA = re.compile(r"[=+\-@\t\r\n]")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV (RFC 4180, line ends LF). ``None`` and NaN are empty, floats keep every digit.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return stream.getvalue()


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return "'" + value if _FORMULA.match(value) else value
    return repr(value) if isinstance(value, float) else str(value)


def json_text(value: Any) -> str:
    """Indented JSON with a final line end; NaN and infinities become null."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replace_folder(folder: Path, owner: str, write: Callable[[Path], dict[str, Any]]) -> None:
    """Fills ``folder`` with the files that ``write`` makes in an empty folder beside it.

    A reader sees either old files or new ones, each of them whole; the summary, which lists them,
    comes last. Files that were not written here stay. ``write`` returns the summary's content.

    Raises:
        CrosstrainError: ``INVALID_FIELD``; the folder holds something else than results of the job
            named ``owner``, or cannot be written.
    """
    old = _owned_files(folder, owner)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise _not_writable(folder, error) from None
    try:
        summary = write(aside)
        names = sorted(path.name for path in aside.iterdir())
        summary = {"crosstrain_results": 1, "job": owner, **summary, "files": [*names, SUMMARY]}
        (aside / SUMMARY).write_text(json_text(summary), encoding="utf-8")
        aside.chmod(0o755)
        if not folder.exists():
            os.rename(aside, folder)
            return
        for name in [*names, SUMMARY]:
            os.replace(aside / name, folder / name)
        for name in old - {*names, SUMMARY}:
            with contextlib.suppress(FileNotFoundError):
                (folder / name).unlink()
    except OSError as error:
        raise _not_writable(folder, error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_folder(folder: Path, owner: str) -> None:
    """Raises what :func:`replace_folder` would raise about a folder that belongs to something else."""
    _owned_files(folder, owner)


def _owned_files(folder: Path, owner: str) -> set[str]:
    """Names of the files that an earlier run of the same job wrote."""
    if not folder.exists():
        return set()
    if not folder.is_dir():
        message = f"{folder.name} is a file; choose another results folder"
        raise CrosstrainError("INVALID_FIELD", message, "results")
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        found, files = summary["job"], summary["files"]
    except FileNotFoundError:
        if not any(folder.iterdir()):
            return set()
        found, files = None, []
    except (OSError, ValueError, KeyError, TypeError):
        found, files = None, []
    if found != owner:
        what = "other files" if found is None else f"results of the job {found!r}"
        message = f"the folder {folder.name} holds {what}; choose another results folder or remove it"
        raise CrosstrainError("INVALID_FIELD", message, "results")
    return {name for name in files if isinstance(name, str) and Path(name).name == name and name != ".."}


def _not_writable(folder: Path, error: OSError) -> CrosstrainError:
    message = f"the results folder {folder.name} cannot be written: {error.strerror}"
    return CrosstrainError("STORAGE_FULL" if error.errno == 28 else "INVALID_FIELD", message, "results")
