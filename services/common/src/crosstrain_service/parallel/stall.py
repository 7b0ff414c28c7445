"""Ranks whose processes live but do not go on: the launcher sees it by what they note (see :mod:`.progress`).

A process that hangs keeps the others waiting in their next common operation, so that soon none goes on. Then those
that have come least far are to blame; where all have come equally far, nobody is.
"""

import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..events import EventLog
from ..rundir import write_file
from . import progress
from .progress import Place
from .watch import End, LocalRanks

#: The share of the limit after which there is a warning.
WARN_SHARE = 0.25
#: The limit is at least so many times the longest stretch between two notes, ...
LONGEST = 20
#: ... and so many times the longest of those in which something was done for the first time, as a smaller last batch
#: may be compiled again.
LONGEST_FIRST = 2
#: What is done for the first time may take so many times as long: compilers.
FIRST = 5
#: Longest time between two looks that counts: a launcher that was stopped itself has seen nothing.
BLINK_SECONDS = 0.5
#: In :class:`watch.End`: no rank in particular.
NOBODY = -1
_LOOK_SECONDS = 0.1
_STACK_SECONDS = 0.5
_REPORT_SECONDS = 1.0
_NOTICE_SECONDS = 0.5


class Stall(NamedTuple):
    """The ranks that lag (none: all are at the same place), where, and for how long, seconds."""

    lagging: List[int]
    place: Place
    seconds: float
    limit: float

    @property
    def rank(self) -> int:
        """The first that lags; -1 if nobody does in particular."""
        return self.lagging[0] if self.lagging else NOBODY

    @property
    def reason(self) -> str:
        """What was seen of :attr:`rank`, for people."""
        since = "for %.0f s %s" % (self.seconds, self.place.words)
        if not self.lagging:
            return "none has gone on %s, and all are at the same place" % since
        if len(self.lagging) == 1:
            return "has not gone on %s, while the others wait for it" % since
        return "has not gone on %s, nor %s %s, while the others wait for them" % (
            since, "has" if len(self.lagging) == 2 else "have", ranks_text(self.lagging[1:]))


class Stopwatch:
    """How long nobody has gone on, of the time in which somebody looked."""

    def __init__(self, seconds: float, size: int) -> None:
        """``seconds``: the limit, 0 for none; ``size``: processes of the run."""
        self._limit = seconds
        self._size = size
        self._looked: Optional[float] = None
        self._counts: List[int] = []
        self._new = False
        self._longest = {False: 0.0, True: 0.0}
        self.still = 0.0

    @property
    def limit(self) -> float:
        """The limit for what is at work now, seconds."""
        seconds = self._limit * FIRST if self._new else self._limit
        return max(seconds, LONGEST * self._longest[False], LONGEST_FIRST * self._longest[True])

    def look(self, places: Mapping[int, Place], now: float) -> Optional[Stall]:
        """Takes what is known at a time, seconds; how it stands, or None if there is nothing to be watched."""
        passed = min(now - self._looked, BLINK_SECONDS) if self._looked is not None else 0.0
        self._looked = now
        found = [places[rank] for rank in sorted(places)]
        watched = self._limit and self._size > 1 and len(found) == self._size
        if not watched or any(place.phase == progress.STARTING for place in found):
            return None
        counts = [place.count for place in found]
        if counts != self._counts:
            if self._counts:
                self._longest[self._new] = max(self._longest[self._new], self.still + passed)
            self._counts, self.still = counts, 0.0
        else:
            self.still += passed
        self._new = any(place.new for place in found)
        least = min((place.place, place.joined) for place in found)
        lagging = [rank for rank in sorted(places) if (places[rank].place, places[rank].joined) == least]
        if len(lagging) == self._size:
            return Stall([], found[0], self.still, self.limit)
        return Stall(lagging, places[lagging[0]], self.still, self.limit)


class Lookout:
    """What the ranks of this host have noted."""

    def __init__(self, folder: str, ranks: Sequence[int], local: LocalRanks) -> None:
        self._folder = folder
        self._ranks = list(ranks)
        self._local = local
        self._asked = 0.0

    def places(self) -> Dict[int, Place]:
        """The places of those that have begun."""
        found = {rank: progress.read(self._folder, rank) for rank in self._ranks}
        return {rank: place for rank, place in found.items() if place is not None}

    def ask(self) -> None:
        """Asks all for their stacks. Only of ranks that have begun: to others the signal is deadly."""
        self._asked = time.monotonic()
        for rank in self.places():
            self._local.signal(rank, progress.ASK_STACK)

    def answers(self) -> Optional[Dict[int, str]]:
        """Where they are, once they have had time to say so after :meth:`ask`; all of it goes to the log of the run."""
        if not self._asked or time.monotonic() - self._asked < _STACK_SECONDS:
            return None
        self._asked = 0.0
        for rank in self._ranks:
            sys.stderr.write("rank %d:\n%s\n" % (rank, progress.dumped(self._folder, rank)))
        sys.stderr.flush()
        return {rank: progress.stack(self._folder, rank) for rank in self._ranks}


class Watchdog:
    """Watches all ranks of a run, in the launcher of its leader."""

    def __init__(self, folder: str, seconds: float, size: int, lookout: Lookout,
                 tell: Callable[[Dict[str, Any]], None]) -> None:
        """``tell`` sends a message to the other members."""
        self._folder = folder
        self._stopwatch = Stopwatch(seconds, size)
        self._lookout = lookout
        self._tell = tell
        self._remote: Dict[int, Place] = {}
        self._stacks: Dict[int, str] = {}
        self._looked = 0.0
        # 0: nothing is wrong; 1: stacks were asked for; 2: there was a warning
        self._stage = 0
        #: The end of the rank that did not go on, once the limit is over.
        self.ends: List[End] = []

    def hear(self, message: Dict[str, Any]) -> None:
        """Takes what a member said."""
        for rank, numbers in message.get("places", {}).items():
            self._remote[int(rank)] = Place(*numbers)
        for rank, text in message.get("stacks", {}).items():
            self._stacks[int(rank)] = text

    def look(self) -> None:
        """Looks at all ranks, unless that was a moment ago."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS or self.ends:
            return
        self._looked = now
        places = self._lookout.places()
        places.update(self._remote)
        found = self._stopwatch.look(places, now)
        if found is None or not found.seconds:
            if self._stage == 2:
                say(self._folder, "the ranks go on")
            self._stage = 0
            return
        if self._stage == 0 and found.seconds >= found.limit * WARN_SHARE:
            self._stage = 1
            self._stacks = {}
            self._lookout.ask()
            self._tell({"ask": "stacks"})
        answers = self._lookout.answers() if self._stage == 1 else None
        if answers is not None:
            self._stage = 2
            self._stacks.update(answers)
            who = ranks_text(found.lagging) if found.lagging else "all ranks"
            say(self._folder, "%s: %s; lost after %.0f s (parallel.stall_seconds)%s" % (
                who, found.reason, found.limit, self._where(found)))
        if found.seconds >= found.limit:
            self.ends = [End(found.rank, 1, time.time(), None, found.reason + self._where(found))]

    def _where(self, found: Stall) -> str:
        """Where those that lag are, or all."""
        known = ["rank %d is at %s" % (rank, self._stacks[rank])
                 for rank in (found.lagging or sorted(self._stacks))[:4] if self._stacks.get(rank)]
        return "".join("; " + text for text in known)


class Reporter:
    """Tells the leader how far the ranks of another member have come."""

    def __init__(self, lookout: Lookout, send: Callable[[Dict[str, Any]], None]) -> None:
        self._lookout = lookout
        self._send = send
        self._sent: Dict[int, Place] = {}
        self._looked = 0.0

    def hear(self, message: Dict[str, Any]) -> None:
        """Takes what the leader said."""
        if message.get("ask") == "stacks":
            self._lookout.ask()

    def look(self) -> None:
        """Sends what has changed, at most once a second."""
        now = time.monotonic()
        if now - self._looked >= _REPORT_SECONDS:
            self._looked = now
            places = self._lookout.places()
            changed = {rank: place for rank, place in places.items() if self._sent.get(rank) != place}
            if changed:
                self._send({"places": changed})
            self._sent = places
        answers = self._lookout.answers()
        if answers is not None:
            self._send({"stacks": answers})


def ranks_text(ranks: Sequence[int]) -> str:
    """For example "rank 1", "ranks 0 and 2", "ranks 0, 1, 2 and 5 more"."""
    names = [str(rank) for rank in ranks[:4]]
    if len(ranks) > 4:
        names = names[:3] + ["%d more" % (len(ranks) - 3)]
    if len(names) == 1:
        return "rank " + names[0]
    return "ranks %s and %s" % (", ".join(names[:-1]), names[-1])


# What the launcher has to say while rank 0 writes the run's events: it leaves a file, which rank 0 takes.


def say(folder: str, text: str) -> None:
    """Leaves a warning for the log of the run."""
    write_file(os.path.join(folder, "notice-%d" % time.monotonic_ns()), text.encode("utf-8"))


def heard(folder: str) -> List[str]:
    """The warnings that nobody has taken yet."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.startswith("notice-") and not name.endswith(".incoming"):
            path = os.path.join(folder, name)
            try:
                with open(path, encoding="utf-8") as file:
                    found.append(file.read())
                os.unlink(path)
            except OSError:
                continue
    return found


def pass_on(folder: str, events: EventLog) -> None:
    """Has a thread write them into the events of the run."""
    def run() -> None:
        while True:
            for text in heard(folder):
                try:
                    events.log(text, "warning")
                except OSError:  # a full disk is reported by the training thread
                    return
            time.sleep(_NOTICE_SECONDS)

    threading.Thread(target=run, name="notices", daemon=True).start()
