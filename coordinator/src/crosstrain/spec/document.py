"""Reads YAML (or JSON) text into plain values, and remembers the line of every value.

The text comes from outside: its size, depth and number of values are bounded, keys may not repeat,
and anchors, aliases and tags are refused (a few lines of aliases can expand to gigabytes, and a
tag can ask for an object). Plain scalars are read by the core schema of YAML 1.2, so ``on`` is a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from .errors import SpecError, Violation

MAX_BYTES = 1 << 20
MAX_DEPTH = 24
MAX_VALUES = 20_000
#: Digits of a number; more than any field can use.
MAX_DIGITS = 400

Path = tuple[str | int, ...]

#: An engine with settings in brackets.
_BRACKETS = re.compile(r"\w\[\s*[a-z_]+\s*=")
_NULL = re.compile(r"(null|Null|NULL|~|)\Z")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")


@dataclass
class Document:
    """Values of a document, and the 1-based line of each one by its path."""

    values: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """Line of the value at ``path``, or of the nearest one that holds it."""
        return line_of(self.lines, path)


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Line of ``path`` in a table of lines, or of the nearest enclosing value."""
    for end in range(len(path), -1, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


def field_name(path: Path) -> str:
    """``("model", "layers", 2, "dense")`` as ``model.layers[2].dense``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_document(text: str) -> Document:
    """Reads one YAML or JSON document whose top level is a mapping.

    Raises:
        SpecError: the text is too large, is no YAML, or uses what is refused here.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _refused((), None, f"the document is larger than {MAX_BYTES} bytes")
    if text.lstrip().startswith("{") and _is_json(text):
        # Tabs can only stand between the values of JSON; YAML does not take them everywhere.
        text = text.replace("\t", " ")
    reader = _Reader()
    try:
        return reader.read(iter(YAML(typ="safe", pure=True).parse(text)))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        if mark and _BRACKETS.search(" ".join(text.splitlines()[mark.line : mark.line + 1])):
            problem += '; within a list in brackets an engine with settings needs quotes, as in ["torch[data=2]"]'
        raise _refused((), mark.line + 1 if mark else None, f"not valid YAML: {problem}") from None
    except (YAMLError, ValueError) as error:
        raise _refused((), None, f"not valid YAML: {str(error).splitlines()[0]}") from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class _Reader:
    """Builds values from the events of the YAML parser."""

    def __init__(self) -> None:
        self._lines: dict[Path, int] = {}
        self._count = 0

    def read(self, events: Iterator[Event]) -> Document:
        documents = 0
        values: Any = None
        for event in events:
            if isinstance(event, NodeEvent):
                documents += 1
                if documents > 1:
                    raise _refused((), _line(event), "more than one document; write one job per file")
                values = self._value(event, events, ())
        if documents == 0 or values is None:
            raise _refused((), None, "the document is empty")
        if not isinstance(values, dict):
            raise _refused((), 1, f"must be a mapping of fields, not {describe(values)}")
        return Document(values, self._lines)

    def _value(self, event: Event, events: Iterator[Event], path: Path) -> Any:
        line = _line(event)
        self._lines.setdefault(path, line)
        self._count += 1
        if self._count > MAX_VALUES:
            raise _refused((), line, f"the document holds more than {MAX_VALUES} values")
        if len(path) > MAX_DEPTH:
            raise _refused(path[:3], line, f"nested more than {MAX_DEPTH} deep")
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
            raise _refused(path, line, "anchors and aliases (& and *) are not allowed; write the value out")
        tag = getattr(event, "tag", None)
        if tag:
            raise _refused(path, line, f"tags ({tag}) are not allowed; write the plain value")
        if isinstance(event, ScalarEvent):
            return _scalar(event, path, line)
        if isinstance(event, SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(item := next(events), SequenceEndEvent):
                items.append(self._value(item, events, (*path, len(items))))
            return items
        if isinstance(event, MappingStartEvent):
            return self._mapping(events, path)
        raise _refused(path, line, "not a value")

    def _mapping(self, events: Iterator[Event], path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            line = _line(event)
            if not isinstance(event, ScalarEvent):
                raise _refused(path, line, "the name of a field must be a text")
            key = str(event.value)
            if event.anchor or event.tag or (key == "<<" and event.implicit[0]):
                raise _refused(path, line, "anchors, tags and merges (<<) are not allowed; write the value")
            here = (*path, key)
            if key in result:
                first = self._lines[here]
                raise _refused(here, line, f"{key!r} is given in line {first} already; remove one")
            self._lines[here] = line
            result[key] = self._value(next(events), events, here)
        return result


def _scalar(event: ScalarEvent, path: Path, line: int) -> Any:
    text = str(event.value)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _refused(path, line, "holds half of a surrogate pair, which is no text")
    if not event.implicit[0]:
        return text
    if _NULL.match(text):
        return None
    if text in _BOOL:
        return _BOOL[text]
    number = _INT.match(text) or _OCTAL.match(text) or _HEX.match(text) or _FLOAT.match(text)
    if number and len(text) > MAX_DIGITS:
        raise _refused(path, line, f"a number of {len(text)} digits; at most {MAX_DIGITS}")
    if _INT.match(text):
        return int(text)
    if _OCTAL.match(text) or _HEX.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    special = _SPECIAL.match(text)
    if special:
        return float((special.group(1) or "") + "inf") if special.group(2) else float("nan")
    return text


def describe(value: Any) -> str:
    """A value in an error message: short, and said to be a mapping or a list where it is one."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if len(str(value)) > 60 else str(value)
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _line(event: Event) -> int:
    mark = event.start_mark
    return 1 if mark is None else int(mark.line) + 1


def _refused(path: Path, line: int | None, message: str) -> SpecError:
    return SpecError([Violation(field_name(path), line, message)])
