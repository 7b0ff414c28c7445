"""Reads protobuf's text format, as prototxt files are written, without knowing the message's type.

Files come from outside: size, nesting and number of values are limited, nothing in them names another file that
would be opened, and every error names the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from crosstrain_service.errors import CrosstrainError

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_FIELDS = 200_000

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>-?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?|inf\b|nan\b))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>[{}<>:\[\]])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CLOSING = {"{": "}", "<": ">"}


@dataclass
class Message:
    """Fields in order of their first appearance; every field is a list, as any may be repeated."""

    line: int
    fields: dict[str, list[Value]] = field(default_factory=dict)


@dataclass(frozen=True)
class Scalar:
    """One value: text as written, and whether it was in quotes."""

    text: str
    quoted: bool
    line: int


Value = Message | Scalar


def invalid(message: str, line: int | None = None) -> CrosstrainError:
    """The error of a file that cannot be taken."""
    place = "" if line is None else f"line {line}: "
    return CrosstrainError("INVALID_MODEL", place + message, "prototxt")


def parse(text: str) -> Message:
    """The fields of a file. Raises CrosstrainError (``INVALID_MODEL``) naming the line."""
    if len(text) > MAX_BYTES:
        raise invalid(f"the file is longer than {MAX_BYTES} characters")
    return _Parser(text).message(0, 1, None)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._count = 0
        self._kind, self._text, self._line = "", "", 1
        self._advance()

    def _advance(self) -> None:
        self._kind, self._text, self._line = next(self._tokens)

    def message(self, depth: int, line: int, closing: str | None) -> Message:
        if depth > MAX_DEPTH:
            raise invalid(f"more than {MAX_DEPTH} messages inside one another", line)
        found = Message(line)
        while not (self._kind == "end" or (self._kind == "mark" and self._text == closing)):
            if self._kind != "name":
                raise invalid(f"a field is expected, not {self._text[:40]!r}", self._line)
            name, at = self._text, self._line
            self._advance()
            colon = self._take(":")
            values = found.fields.setdefault(name, [])
            if self._kind == "mark" and self._text == "[":
                self._list(values, depth)
            else:
                values.append(self._value(name, at, depth, colon))
            self._count += 1
            if self._count > MAX_FIELDS:
                raise invalid(f"more than {MAX_FIELDS} fields", self._line)
        if self._kind == "end" and closing is not None:
            raise invalid(f"the file ends inside the message that begins at line {line}", self._line)
        return found

    def _take(self, mark: str) -> bool:
        if self._kind == "mark" and self._text == mark:
            self._advance()
            return True
        return False

    def _list(self, values: list[Value], depth: int) -> None:
        self._advance()
        while not self._take("]"):
            values.append(self._value("a list", self._line, depth, True))
            self._count += 1

    def _value(self, name: str, line: int, depth: int, colon: bool) -> Value:
        if self._kind == "mark" and self._text in _CLOSING:
            closing, at = _CLOSING[self._text], self._line
            self._advance()
            inner = self.message(depth + 1, at, closing)
            self._advance()
            return inner
        if not colon or self._kind not in ("string", "number", "name"):
            raise invalid(f"{name} has no value", line)
        if self._kind != "string":
            scalar = Scalar(self._text, False, self._line)
            self._advance()
            return scalar
        parts, at = [], self._line
        while self._kind == "string":
            parts.append(_unescaped(self._text[1:-1]))
            self._advance()
        return Scalar("".join(parts), True, at)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise invalid(f"{text[at : at + 20].splitlines()[0]!r} is not text format", line)
        if match.lastgroup != "space":
            yield match.lastgroup, match.group(), line
        line += match.group().count("\n")
        at = match.end()
    while True:
        yield "end", "the end of the file", line


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        octal, hexadecimal, simple = match.groups()
        if octal:
            return chr(int(octal, 8))
        if hexadecimal:
            return chr(int(hexadecimal, 16))
        return _SIMPLE.get(simple, simple)

    return _ESCAPE.sub(one, text)
