"""What keeps a service from starting is one line."""

import os
import subprocess
import sys

import pytest

ENGINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines")


def start(*options, **variables):
    """Exit status and lines of a service that does not start."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([ENGINES] + sys.path), **variables)
    command = [sys.executable, "-m", "crosstrain_service", "--service", "x", "--metrics-port", "0"]
    done = subprocess.run(command + list(options), env=environment, stderr=subprocess.PIPE, timeout=60)
    lines = done.stderr.decode().strip().splitlines()
    assert not any("Traceback" in line for line in lines)
    return done.returncode, [line for line in lines if not line.startswith(("E1", "E0")) and " INFO " not in line]


@pytest.mark.parametrize("option", ["--state", "--artifacts"])
def test_a_folder_that_cannot_be(tmp_path, option):
    options = {"--state": str(tmp_path / "state"), option: "/dev/null/x"}
    status, lines = start("--package", "crosstrain_single", *[part for item in options.items() for part in item])
    assert (status, lines) == (3, ["the service cannot start: Not a directory (/dev/null/x)"])


def test_a_package_that_is_not_there(tmp_path):
    status, lines = start("--package", "crosstrain_nothing", "--state", str(tmp_path))
    assert (status, lines) == (3, ["the service cannot start: No module named 'crosstrain_nothing'"])


def test_an_address_that_is_not_here(tmp_path):
    status, lines = start("--package", "crosstrain_single", "--state", str(tmp_path), "--listen", "192.0.2.1:1")
    assert (status, lines) == (1, ["the service cannot start: it cannot listen on 192.0.2.1:1"])


def test_a_full_disk(tmp_path):
    """The limit on the size of files stands for a volume without room."""
    script = ("import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
              "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
              "sys.argv[0] = 'service'; runpy.run_module('crosstrain_service', run_name='__main__')")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([ENGINES] + sys.path))
    command = [sys.executable, "-c", script, "--package", "crosstrain_single", "--service", "x", "--metrics-port", "0",
               "--state", str(tmp_path)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 3
    assert done.stderr.decode() == "the service cannot start: File too large\n"
    assert os.listdir(str(tmp_path)) == []
