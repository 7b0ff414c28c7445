"""Takes fields out of a text format message, so that those left over can be named."""

from __future__ import annotations

import math

from .textproto import Message, Scalar, Value, invalid


class Fields:
    """The fields of one message; each is taken once. ``where`` names the message in errors.

    All errors are CrosstrainError (``INVALID_MODEL``).
    """

    def __init__(self, message: Message, where: str) -> None:
        self._fields = dict(message.fields)
        self.line = message.line
        self.where = where

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def _values(self, name: str) -> list[Value]:
        return self._fields.pop(name, [])

    def _one(self, name: str) -> Value | None:
        values = self._values(name)
        if len(values) > 1:
            raise self.wrong(f"{name} is given {len(values)} times")
        return values[0] if values else None

    def wrong(self, message: str) -> Exception:
        """An error that names the message."""
        return invalid(f"{self.where}: {message}", self.line)

    def messages(self, name: str) -> list[Message]:
        """All values of a repeated message field."""
        values = self._values(name)
        for value in values:
            if not isinstance(value, Message):
                raise self.wrong(f"{name} must be a message in braces")
        return [value for value in values if isinstance(value, Message)]

    def inner(self, name: str) -> Fields:
        """A message field; empty if it is not there."""
        found = self.messages(name)
        if len(found) > 1:
            raise self.wrong(f"{name} is given {len(found)} times")
        return Fields(found[0] if found else Message(self.line), f"{self.where}: {name}")

    def texts(self, name: str) -> list[str]:
        """All values of a repeated string field."""
        values = self._values(name)
        if not all(isinstance(value, Scalar) and value.quoted for value in values):
            raise self.wrong(f"{name} must be text in quotes")
        return [value.text for value in values if isinstance(value, Scalar)]

    def text(self, name: str, default: str = "") -> str:
        """A string field."""
        found = self.texts(name)
        if len(found) > 1:
            raise self.wrong(f"{name} is given {len(found)} times")
        return found[0] if found else default

    def word(self, name: str, default: str) -> str:
        """An enumeration's value by its name, or a string."""
        value = self._one(name)
        if value is None:
            return default
        if not isinstance(value, Scalar):
            raise self.wrong(f"{name} must be a name")
        return value.text

    def number(self, name: str, default: float) -> float:
        """A number that is finite."""
        value = self._one(name)
        return default if value is None else self._number(name, value)

    def _number(self, name: str, value: Value) -> float:
        try:
            found = float(value.text.rstrip("fF")) if isinstance(value, Scalar) and not value.quoted else math.nan
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            raise self.wrong(f"{name} must be a number")
        return found

    def wholes(self, name: str) -> list[int]:
        """All values of a repeated integer field."""
        found = []
        for value in self._values(name):
            number = self._number(name, value)
            if number != int(number) or abs(number) > 2**31:
                raise self.wrong(f"{name} must be a whole number, not {number}")
            found.append(int(number))
        return found

    def whole(self, name: str, default: int) -> int:
        """An integer field."""
        found = self.wholes(name)
        if len(found) > 1:
            raise self.wrong(f"{name} is given {len(found)} times")
        return found[0] if found else default

    def truth(self, name: str, default: bool) -> bool:
        """A boolean field."""
        word = self.word(name, "true" if default else "false")
        if word not in ("true", "false", "1", "0", "t", "f"):
            raise self.wrong(f"{name} must be true or false, not {word[:40]!r}")
        return word in ("true", "1", "t")

    def ignore(self, *names: str) -> None:
        """Drops fields that have no influence on what is computed."""
        for name in names:
            self._fields.pop(name, None)

    def finish(self) -> None:
        """Raises for fields that nobody took: their meaning would be lost."""
        if self._fields:
            raise self.wrong(f"{', '.join(sorted(self._fields))} cannot be taken over")
