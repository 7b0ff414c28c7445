"""What every reader of a format takes and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .info import Finding
from .sink import SampleSink

# Called once by a reader, as soon as the shape of a sample is known.
StartSink = Callable[[tuple[int, ...]], SampleSink]


@dataclass(frozen=True)
class ReadResult:
    """A source that was read to its end.

    Attributes:
        sink: the sink that took the samples; not finished yet.
        description: format and shape of the source in words, without a directory path.
        class_names: names of classes 0..K-1 when the source has names, else None.
    """

    sink: SampleSink
    description: str
    class_names: tuple[str, ...] | None
    warnings: tuple[Finding, ...] = ()
