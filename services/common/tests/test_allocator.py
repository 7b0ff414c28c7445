"""Settings of malloc for the processes that train."""

import platform
import resource
import subprocess
import sys

import pytest

from crosstrain_service import allocator

#: Allocates and frees 4 MiB a hundred times, as a step does, and prints the pages that the system handed out for it.
_STEPS = """
import resource
import numpy as np
def step():
    np.ones(1 << 20, np.float32)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(environment):
    found = subprocess.run([sys.executable, "-c", _STEPS], env=environment, stdout=subprocess.PIPE, check=True)
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_what_a_step_frees_is_used_by_the_next():
    environment = {}
    allocator.keep_memory(environment)
    assert faults(environment) < (4 << 20) // resource.getpagesize()


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_a_choice_of_the_user_stands(name):
    environment = {name: "1"}
    allocator.keep_memory(environment)
    assert environment == {name: "1"}
