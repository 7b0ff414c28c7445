"""Reads and writes verdict documents; files from elsewhere are validated before anything uses them."""

from __future__ import annotations

import functools
import importlib.resources
import json
import os
from pathlib import Path
from typing import Any, NoReturn

import jsonschema

from crosstrain.compare.verdict.exits import exit_code

#: Largest document that is read, in bytes.
MOST_BYTES = 64 * 1024 * 1024


class UnreadableVerdict(ValueError):
    """A document that is no verdict; the message says where and why."""


@functools.cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(schema())


def schema() -> dict[str, Any]:
    """The JSON schema of the document (2020-12)."""
    text = importlib.resources.files(__package__).joinpath("verdict.schema.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def verdict_json(document: dict[str, Any]) -> str:
    """The document as JSON text, ending with a line end."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_verdict(source: str | os.PathLike[str] | bytes) -> dict[str, Any]:
    """Reads a document from a file, or from bytes.

    Raises:
        UnreadableVerdict: not readable, too large, not JSON, not of this schema, or contradicting itself.
    """
    try:
        document = json.loads(
            _text(source), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_int=_integer
        )
    except UnreadableVerdict:
        raise
    except RecursionError:
        raise UnreadableVerdict("verdict: nested too deeply") from None
    except ValueError as error:
        raise UnreadableVerdict(f"verdict: not JSON: {error}") from None
    check(document)
    found: dict[str, Any] = document
    return found


def check(document: Any) -> None:
    """Validates a document.

    Raises:
        UnreadableVerdict: naming the field and what is wrong with it.
    """
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > 1:
        raise UnreadableVerdict(f"verdict: schema version {version} is newer than this Crosstrain reads (1)")
    error = jsonschema.exceptions.best_match(_validator().iter_errors(document))
    if error is not None:
        raise UnreadableVerdict(f"verdict, field {_path(error)}: {_short(error.message)}")
    _consistent(document)


def _consistent(document: dict[str, Any]) -> None:
    labels = [engine["label"] for engine in document["engines"]]
    for label in labels:
        if labels.count(label) > 1:
            raise UnreadableVerdict(f"verdict, field engines: label {_short(label)} is used more than once")
    for index, pair in enumerate(document["pairs"]):
        for side in ("a", "b"):
            if pair[side] not in labels:
                raise UnreadableVerdict(f"verdict, field pairs[{index}].{side}: no engine has this label")
    expected = exit_code(document["verdict"], bool(document["could_not_compare"]))
    if document["exit_code"] != expected:
        raise UnreadableVerdict(
            f"verdict, field exit_code: {document['exit_code']} where {document['verdict']} means {expected}"
        )
    envelope = document["envelope"]
    if envelope is not None:
        lengths = {len(envelope[name]) for name in ("steps", "low", "high")}
        if len(lengths) > 1:
            raise UnreadableVerdict("verdict, field envelope: steps, low and high have different lengths")


def _text(source: str | os.PathLike[str] | bytes) -> str:
    if isinstance(source, bytes):
        data = source
    else:
        try:
            with open(Path(source), "rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise UnreadableVerdict(f"verdict: cannot be read: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise UnreadableVerdict(f"verdict: larger than {MOST_BYTES // 2**20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableVerdict(f"verdict: not UTF-8 at byte {error.start}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise UnreadableVerdict(f"verdict: name {_short(repeated)} is used twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise UnreadableVerdict(f"verdict: {name} is no JSON value")


def _integer(text: str) -> int:
    if len(text) > 20:
        raise UnreadableVerdict("verdict: an integer has more than 20 digits")
    return int(text)


def _path(error: Any) -> str:
    text = ""
    for part in error.absolute_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return _short(text) or "(whole document)"


def _short(text: str) -> str:
    text = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return text if len(text) <= 200 else text[:197] + "..."
