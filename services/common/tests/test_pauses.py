"""Pauses between looks, and waking when a child process ends."""

import subprocess
import sys
import time

from crosstrain_service import pauses
from crosstrain_service.pauses import Pauses


def test_pauses_grow_with_time_between_their_bounds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(pauses.time, "monotonic", lambda: now[0])
    pause = Pauses(0.02, 0.25)
    assert pause.next() == 0.02
    now[0] += 5
    assert abs(pause.next() - 0.1) < 1e-9
    now[0] += 1000
    assert pause.next() == 0.25


_WAITER = """
import subprocess, sys, time
from crosstrain_service.parallel.endings import Endings
endings = Endings()
begin = time.monotonic()
endings.wait(0.2)
assert 0.2 <= time.monotonic() - begin < 5, "woken by nobody"
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
begin = time.monotonic()
while child.poll() is None:
    endings.wait(60)
print(time.monotonic() - begin)
"""


def test_the_end_of_a_child_wakes_at_once():
    begin = time.monotonic()
    output = subprocess.run([sys.executable, "-c", _WAITER], stdout=subprocess.PIPE, check=True, timeout=50).stdout
    assert 0.25 < float(output) < 20 and time.monotonic() - begin < 40
