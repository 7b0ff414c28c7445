"""What a command prints: results on stdout, progress and errors on stderr, or JSON for scripts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class Output:
    """Where a command's words go. With ``json_wanted``, stdout carries nothing but JSON."""

    #: The newest one, for errors that end a command.
    current: Output | None = None

    def __init__(self, json_wanted: bool = False) -> None:
        self.json = json_wanted
        Output.current = self

    def document(self, value: Any) -> None:
        """Prints one JSON document, in JSON mode only."""
        if self.json:
            print(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False))

    def line(self, value: Any) -> None:
        """Prints one JSON line, in JSON mode only."""
        if self.json:
            print(json.dumps(plain(value), ensure_ascii=False, allow_nan=False), flush=True)

    def text(self, text: str = "") -> None:
        """Prints a line of a result for people."""
        if not self.json:
            print(printable(text))

    def note(self, text: str) -> None:
        """Prints a line of progress."""
        print(printable(text), file=sys.stderr, flush=True)

    def table(
        self, title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], right: str = ""
    ) -> None:
        """Prints a table for people; ``right`` names columns, by their letters' places, to align right.

        On a terminal it is drawn by rich; elsewhere columns are separated by two spaces.
        """
        if self.json:
            return
        cells = [[printable(cell_text(cell)) for cell in row] for row in rows]
        aligned = [place < len(right) and right[place] == "r" for place in range(len(header))]
        if title:
            print(title)
        if sys.stdout.isatty():
            self._draw(header, cells, aligned)
            return
        widths = [max(len(row[place]) for row in [list(header), *cells]) for place in range(len(header))]
        for row in [list(header), *cells]:
            parts = [
                text.rjust(width) if to_right else text.ljust(width)
                for text, width, to_right in zip(row, widths, aligned, strict=True)
            ]
            print("  ".join(parts).rstrip())

    def _draw(self, header: Sequence[str], cells: Sequence[Sequence[str]], aligned: Sequence[bool]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for name, to_right in zip(header, aligned, strict=True):
            table.add_column(Text(name), justify="right" if to_right else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        console().print(table)


def console(stderr: bool = False) -> Console:
    """A console of rich, which interprets no markup in what it is given."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False)


def cell_text(value: Any) -> str:
    """A value in a table for people: floats with six significant digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def printable(text: str) -> str:
    """Text without control characters, which could steer a terminal."""
    return "".join(character if character.isprintable() or character in "\n\t" else "?" for character in text)


def plain(value: Any) -> Any:
    """JSON values; a number that is not finite becomes null."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
