"""Exit codes, and the error that ends a command with one."""

from __future__ import annotations

OK = 0
#: The engines did not compute the same (see the verdict).
MISMATCH = 1
#: Not enough evidence for a verdict.
INCONCLUSIVE = 2
#: Something could not run: an engine failed or was refused, data or document cannot be used, no coordinator.
COULD_NOT_RUN = 3
USAGE = 64
INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command with a message for the user."""

    def __init__(self, message: str, code: int = COULD_NOT_RUN, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.remedy = remedy
