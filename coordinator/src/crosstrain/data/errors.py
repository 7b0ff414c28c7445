"""The one error that reading user data may raise."""

from __future__ import annotations

from typing import Any


class DataError(Exception):
    """User data, or an option that describes it, cannot be used.

    The text is written for the owner of the data: it names the place and the value, and never holds
    a directory path or a stack trace.

    Attributes:
        field: what is at fault: a part of the job (``data.shape``), or the name of the file.
        message: one sentence or two for the user.
        row: 1-based line of a text file, or 1-based sample number of other formats.
        column: name of the CSV column, or its 1-based number as text when the file has no header.
        value: the offending text, shortened to 40 characters.
    """

    def __init__(
        self,
        field: str,
        message: str,
        *,
        row: int | None = None,
        column: str | None = None,
        value: str | None = None,
    ) -> None:
        self.field = field
        self.message = message
        self.row = row
        self.column = column
        self.value = None if value is None else shorten(value)
        super().__init__(f"{field}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its own parts, so that it can come back from another process."""
        return (_rebuilt, (self.field, self.message, self.row, self.column, self.value))


def _rebuilt(field: str, message: str, row: int | None, column: str | None, value: str | None) -> DataError:
    return DataError(field, message, row=row, column=column, value=value)


def shorten(text: str, limit: int = 40) -> str:
    """``text`` cut to ``limit`` characters, with an ellipsis when something was cut."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def listing(values: list[object] | list[int] | list[str], limit: int = 12) -> str:
    """A comma-separated list of at most ``limit`` values, saying how many were left out."""
    shown = ", ".join(str(value) for value in values[:limit])
    rest = len(values) - limit
    return shown if rest <= 0 else f"{shown} and {rest} more"
