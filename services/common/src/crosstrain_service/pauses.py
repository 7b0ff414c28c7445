"""How long to wait between two looks at something that others do."""

import time

#: A pause is this share of the time since the first look.
_SHARE = 0.02


class Pauses:
    """Pauses that grow with the time since the first one, between two bounds in seconds.

    What ends soon is seen to end at once, and what lasts is not looked at often: whoever looks takes processor time
    from ranks that keep every core busy, and as they wait for one another in every step, what delays one delays all.
    """

    def __init__(self, shortest: float = 0.02, longest: float = 0.25) -> None:
        self._shortest = shortest
        self._longest = longest
        self._begun = time.monotonic()

    def next(self) -> float:
        """The next pause, seconds."""
        return min(self._longest, max(self._shortest, _SHARE * (time.monotonic() - self._begun)))

    def wait(self) -> None:
        """Waits for the next pause."""
        time.sleep(self.next())
