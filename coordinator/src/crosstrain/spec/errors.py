"""What is wrong with a job document, value by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crosstrain_service.errors import CrosstrainError

#: So many violations are part of the message of an error; all of them are in ``violations``.
_SHOWN = 20


@dataclass(frozen=True)
class Violation:
    """One wrong value.

    Attributes:
        field: path in the document, for example ``model.layers[2].convolution.kernel``.
        line: 1-based line of the document; None where it is not known.
        message: what is wrong with which value, and what is allowed.
    """

    field: str
    line: int | None
    message: str

    @property
    def description(self) -> str:
        """The message as it is sent in ``google.rpc.BadRequest``."""
        return self.message if self.line is None else f"line {self.line}: {self.message}"

    def text(self, source: str = "") -> str:
        """One line for a person: ``file:line: field: message``, without the parts that are not known."""
        place = ":".join(part for part in (source, "" if self.line is None else str(self.line)) if part)
        if place and not source:
            place = f"line {place}"
        return ": ".join(part for part in (place, self.field, self.message) if part)


class SpecError(CrosstrainError):
    """The job document cannot be used (``INVALID_JOB``, or ``INVALID_MODEL`` for its layers).

    ``violations`` names everything that was found wrong, in the order of the document.
    """

    violations: tuple[Violation, ...]

    def __init__(self, violations: Sequence[Violation], reason: str = "INVALID_JOB") -> None:
        found = sorted(violations, key=lambda item: (item.line is None, item.line or 0))
        lines = [item.text() for item in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"and {len(found) - _SHOWN} more")
        super().__init__(reason, "; ".join(lines), found[0].field, violations=tuple(found))
