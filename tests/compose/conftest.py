"""The stack, started once, and what the command that started the tests found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import inputs

from .stack import Stack

#: The command's findings, as JSON: variables of the bake file and of compose.
SETUP_VARIABLE = "CROSSTRAIN_E2E_SETUP"


@pytest.fixture(scope="session")
def setup() -> dict[str, str]:
    """Variables of docker-bake.hcl and compose.yaml with which the images were built."""
    if SETUP_VARIABLE not in os.environ:
        pytest.skip("these tests are started by 'make e2e-compose', which builds the images first")
    return dict(json.loads(os.environ[SETUP_VARIABLE]))


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 160 and 60 real digits that containers can read."""
    folder = tmp_path_factory.mktemp("datasets")
    folder.chmod(0o755)
    inputs.write_digits(folder)
    return folder


@pytest.fixture(scope="session")
def stack(setup: dict[str, str], digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack of compose.yaml, healthy."""
    started = Stack(tmp_path_factory.mktemp("stack"), digits, setup)
    started.down()
    try:
        started.up()
        started.wait_registered()
        yield started
    finally:
        started.down()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Prints a measured figure although pytest captures output."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n    {text}", flush=True)

    return say
