"""Cuts a CSV file into blocks of whole lines with one kind of line end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .errors import DataError

MAX_LINE_BYTES = 64 << 20
UTF8_BOM = b"\xef\xbb\xbf"
OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@dataclass(frozen=True)
class LineBlock:
    """Whole lines, each ended by ``\\n`` (the last line of the file too).

    Attributes:
        first_line: 1-based number, in the file, of the first line.
        text: the bytes.
    """

    first_line: int
    text: bytes


def line_blocks(chunks: Iterable[bytes], name: str) -> Iterator[LineBlock]:
    """Blocks of at least one line, about as long as the chunks.

    A byte-order mark of UTF-8 is dropped; CRLF and bare CR become LF. Every line keeps its number,
    and empty lines are kept.

    Raises:
        DataError: another encoding, binary data, or a line above 64 MiB.
    """
    line = 1
    for text in _whole_lines(_one_line_end(_checked_start(chunks, name)), name):
        yield LineBlock(line, text)
        line += text.count(b"\n")


def _checked_start(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    first = True
    for chunk in chunks:
        if first:
            first = False
            if chunk[:2] in OTHER_ENCODINGS:
                raise DataError(name, f"the text is {OTHER_ENCODINGS[chunk[:2]]}; save it as UTF-8")
            chunk = chunk.removeprefix(UTF8_BOM)
        if b"\0" in chunk:
            raise DataError(name, "holds zero bytes, so it is not a text file")
        yield chunk


def _one_line_end(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        chunk, held = held + chunk, b""
        if b"\r" in chunk:
            if chunk.endswith(b"\r"):  # its LF may start the next chunk
                chunk, held = chunk[:-1], b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield chunk
    if held:
        yield b"\n"


def _whole_lines(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    parts: list[bytes] = []
    waiting = 0
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, chunk[:cut]])
            parts, waiting = [], 0
        parts.append(chunk[cut:])
        waiting += len(chunk) - cut
        if waiting > MAX_LINE_BYTES:
            raise DataError(name, f"a line is longer than {MAX_LINE_BYTES >> 20} MiB; this is not a CSV file")
    rest = b"".join(parts)
    if rest:
        yield rest + b"\n"
