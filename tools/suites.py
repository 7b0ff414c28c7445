"""The test suites of this repository: which folder is tested in which environment. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crosstrain.launch.catalogue import Catalogue
from crosstrain.launch.environments import (
    Environment,
    Progress,
    Unavailable,
    coordinator_environment,
)
from crosstrain.launch.extras import equipped_environment

ROOT = Path(__file__).resolve().parents[1]
COORDINATOR = "coordinator"
#: What takes minutes comes first, so that all that run at a time end together. What mostly waits (for processes that
#: are killed, mainly) stands between what computes.
_FIRST = (
    "coordinator", "conformance", "faults", "parity", "common-new", "e2e", "keras_theano", "common-old",
    "tensorflow-2.21", "tensorflow-2.12",
)  # fmt: skip


@dataclass(frozen=True)
class Suite:
    """Tests of one folder in one environment (a service's name, or ``coordinator``)."""

    name: str
    folder: Path
    environment: str
    variables: dict[str, str] = field(default_factory=dict)


def suites(catalogue: Catalogue) -> Iterator[Suite]:
    """All suites, the longest first. A folder without tests yields none."""
    services = ROOT / "services"
    listed = [Suite(folder.name, folder, COORDINATOR) for folder in _across_components()]
    listed += [
        Suite("coordinator", ROOT / "coordinator" / "tests", COORDINATOR),
        Suite("common-new", services / "common" / "tests", "reference"),
        # The same tests on the oldest Python, with fewer moments at which processes are killed.
        Suite("common-old", services / "common" / "tests", "keras_theano", {"CROSSTRAIN_FAULT_POINTS": "5"}),
    ]
    listed += [Suite(service.name, service.folder / "tests", service.name) for service in catalogue.services]
    listed.append(Suite("protos", ROOT / "protos" / "tests", COORDINATOR))
    listed.sort(key=lambda suite: _FIRST.index(suite.name) if suite.name in _FIRST else len(_FIRST))
    return (suite for suite in listed if suite.folder.is_dir())


def _across_components() -> list[Path]:
    """Folders below ``tests`` that hold tests; not what ``make e2e-compose`` runs."""
    return sorted({path.parent for path in (ROOT / "tests").glob("*/test_*.py")} - {ROOT / "tests" / "compose"})


def environment_of(suite: Suite, catalogue: Catalogue, progress: Progress) -> Environment | Unavailable:
    """The suite's environment with the test tools and all additions that can be had, built if need be."""
    if suite.environment == COORDINATOR:
        return coordinator_environment(catalogue, tests=True, progress=progress)
    return equipped_environment(catalogue.service(suite.environment), catalogue, tests=True, progress=progress)
