"""Runs every test suite in the environment it belongs to and sums the results up.

Standard library only. ``tools/test.py [--list] [--allow-missing] [suite ...] [-- pytest options]``.
A suite whose environment cannot be had fails the run, unless --allow-missing is given.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "coordinator" / "src"))

from crosstrain.launch.catalogue import Catalogue, load_catalogue  # noqa: E402
from crosstrain.launch.environments import (  # noqa: E402
    Environment,
    Unavailable,
    coordinator_environment,
    service_environment,
)

_NO_TESTS_COLLECTED = 5
_TEST_SECONDS = 300


@dataclass(frozen=True)
class Suite:
    """Tests of one folder in one environment (a service's name, or ``coordinator``)."""

    name: str
    folder: Path
    environment: str


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def suites(catalogue: Catalogue) -> Iterator[Suite]:
    """All suites, quick ones first. A folder that does not exist yields none."""
    services = ROOT / "services"
    listed = [
        Suite("protos", ROOT / "protos" / "tests", "coordinator"),
        Suite("coordinator", ROOT / "coordinator" / "tests", "coordinator"),
        Suite("common-new", services / "common" / "tests", "reference"),
        Suite("common-old", services / "common" / "tests", "keras_theano"),
    ]
    listed += [Suite(service.name, service.folder / "tests", service.name) for service in catalogue.services]
    listed.append(Suite("tests", ROOT / "tests", "coordinator"))
    return (suite for suite in listed if suite.folder.is_dir())


def environment_of(suite: Suite, catalogue: Catalogue) -> Environment | Unavailable:
    if suite.environment == "coordinator":
        return coordinator_environment(catalogue, tests=True, progress=_report)
    return service_environment(catalogue.service(suite.environment), catalogue, tests=True, progress=_report)


def run_suite(suite: Suite, environment: Environment, options: list[str]) -> Counts:
    """Runs pytest; a crash of pytest itself counts as one failure."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            str(environment.python), "-m", "pytest", str(suite.folder), "-q", "-p", "no:cacheprovider",
            f"--timeout={_TEST_SECONDS}", f"--junit-xml={report}", *options,
        ]  # fmt: skip
        variables = {**os.environ, **environment.variables()}
        finished = subprocess.run(command, cwd=ROOT, env=variables, check=False)
        if finished.returncode == _NO_TESTS_COLLECTED:
            return Counts()
        counts = _read_counts(report)
    if finished.returncode != 0 and counts.failed == 0:
        counts.failed = 1
    return counts


def _read_counts(report: Path) -> Counts:
    counts = Counts()
    if not report.is_file():
        return counts
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            counts.failed += 1
        elif "skipped" in kinds:
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def _report(line: str) -> None:
    print(f"[setup] {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", help="names of suites; all when none is given")
    parser.add_argument("--list", action="store_true", help="list the suites and stop")
    parser.add_argument("--allow-missing", action="store_true", help="skip suites without an environment")
    own, options = _split(sys.argv[1:])
    arguments = parser.parse_args(own)
    catalogue = load_catalogue(ROOT / "services" / "services.toml")
    chosen = list(suites(catalogue))
    unknown = set(arguments.suites) - {suite.name for suite in chosen}
    if unknown:
        parser.error(
            f"unknown suite {', '.join(sorted(unknown))}; known: {', '.join(s.name for s in chosen)}"
        )
    if arguments.suites:
        chosen = [suite for suite in chosen if suite.name in arguments.suites]
    if arguments.list:
        print("\n".join(suite.name for suite in chosen))
        return 0

    total = Counts()
    summary = []
    for suite in chosen:
        print(f"\n=== {suite.name}", flush=True)
        started = time.monotonic()
        environment = environment_of(suite, catalogue)
        if isinstance(environment, Unavailable):
            counts = Counts(skipped=1) if arguments.allow_missing else Counts(failed=1)
            note = f"no environment: {environment.reason} (to fix it: {environment.remedy})"
        else:
            counts = run_suite(suite, environment, options)
            note = f"{time.monotonic() - started:.0f} s, Python {environment.version}"
        total.add(counts)
        numbers = f"{counts.passed:>6} passed{counts.failed:>5} failed{counts.skipped:>5} skipped"
        summary.append(f"{suite.name:<18}{numbers}   {note}")
    print("\n" + "\n".join(summary))
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed or total.passed == 0 else 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
