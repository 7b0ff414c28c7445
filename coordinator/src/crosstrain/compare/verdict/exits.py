"""The verdicts in their order, and the exit codes of the command line."""

from __future__ import annotations

from collections.abc import Iterable

IDENTICAL = "IDENTICAL"
ROUNDING = "ROUNDING"
INCONCLUSIVE = "INCONCLUSIVE"
MISMATCH = "MISMATCH"

#: From the best to the worst.
VERDICTS = (IDENTICAL, ROUNDING, INCONCLUSIVE, MISMATCH)

#: Exit code where something could not be run or compared.
COULD_NOT_COMPARE = 3

_CODES = {IDENTICAL: 0, ROUNDING: 0, MISMATCH: 1, INCONCLUSIVE: 2}


def worst(verdicts: Iterable[str]) -> str:
    """The worst of some verdicts; of none, inconclusive."""
    return max(verdicts, key=VERDICTS.index, default=INCONCLUSIVE)


def exit_code(verdict: str, could_not_compare: bool = False) -> int:
    """0 the same function, 1 a mismatch, 2 inconclusive, 3 inconclusive since something could not be compared.

    A mismatch is a finding about what was compared: it keeps its code whatever else could not be.
    """
    if could_not_compare and verdict != MISMATCH:
        return COULD_NOT_COMPARE
    return _CODES[verdict]
