import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
for path in (HERE, os.path.join(HERE, "engines")):
    if path not in sys.path:
        sys.path.insert(0, path)

import pytest  # noqa: E402

from support import Service  # noqa: E402


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service process for the tests of a module."""
    running = Service(tmp_path_factory.mktemp("state"))
    yield running
    running.close()


@pytest.fixture
def own_service(tmp_path):
    """A service process for one test, which may kill it."""
    running = Service(tmp_path / "state", "crosstrain_single")
    yield running
    running.close()
