"""Runs every test suite in the environment it belongs to and sums the results up.

Standard library only. ``tools/test.py [--list] [suite ...] [-- pytest options]``. A suite whose environment
this machine cannot have (no such interpreter, a system package is missing) counts as skipped, with the reason
and the remedy; an environment that fails to build fails the run, and so does any of the coordinator's.

A test that fails is tried once more on its own: on a busy machine a time limit may be missed. What passed only
then is listed at the end.
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
from dataclasses import dataclass, field
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

_TESTS_FAILED = 1
_NO_TESTS_COLLECTED = 5
_TEST_SECONDS = 300
#: More failures than this are no accident.
_MOST_RETRIED = 5


@dataclass(frozen=True)
class Suite:
    """Tests of one folder in one environment (a service's name, or ``coordinator``)."""

    name: str
    folder: Path
    environment: str
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    retried: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.retried += other.retried
        self.failed += other.failed
        self.skipped += other.skipped


def suites(catalogue: Catalogue) -> Iterator[Suite]:
    """All suites, quick ones first. A folder that does not exist yields none."""
    services = ROOT / "services"
    listed = [
        Suite("protos", ROOT / "protos" / "tests", "coordinator"),
        Suite("coordinator", ROOT / "coordinator" / "tests", "coordinator"),
        Suite("common-new", services / "common" / "tests", "reference"),
        # The same tests on the oldest Python, with fewer moments at which processes are killed.
        Suite("common-old", services / "common" / "tests", "keras_theano", {"CROSSTRAIN_FAULT_POINTS": "5"}),
    ]
    listed += [Suite(service.name, service.folder / "tests", service.name) for service in catalogue.services]
    listed.append(Suite("tests", ROOT / "tests", "coordinator"))
    return (suite for suite in listed if suite.folder.is_dir())


def environment_of(suite: Suite, catalogue: Catalogue) -> Environment | Unavailable:
    if suite.environment == "coordinator":
        return coordinator_environment(catalogue, tests=True, progress=_report)
    return service_environment(catalogue.service(suite.environment), catalogue, tests=True, progress=_report)


def run_suite(suite: Suite, environment: Environment, options: list[str]) -> Counts:
    """Runs pytest, and what failed once more; a crash of pytest itself counts as one failure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            str(environment.python), "-m", "pytest", str(suite.folder), "-q", "-o", f"cache_dir={folder / 'cache'}",
            f"--timeout={_TEST_SECONDS}", *options,
        ]  # fmt: skip
        variables = {**os.environ, **environment.variables(), **suite.variables}
        # Every suite may compare with the reference, whose library needs nothing but NumPy.
        paths = [variables["PYTHONPATH"], str(ROOT / "services" / "reference" / "src")]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
        status, counts, failed = _pytest(command, folder / "first.xml", variables)
        if status == _TESTS_FAILED and 0 < len(failed) <= _MOST_RETRIED:
            print(f"=== {suite.name}: what failed, once more", flush=True)
            again = [*command, "--last-failed", "--last-failed-no-failures=none"]
            status, second, still = _pytest(again, folder / "second.xml", variables)
            counts.retried = [test for test in failed if test not in still]
            counts.passed += len(counts.retried)
            counts.failed = max(second.failed, len(failed) - len(counts.retried))
    if status not in (0, _NO_TESTS_COLLECTED) and counts.failed == 0:
        counts.failed = 1
    return counts


def _pytest(command: list[str], report: Path, variables: dict[str, str]) -> tuple[int, Counts, list[str]]:
    """One call of pytest: exit status, counts, and the tests that failed."""
    finished = subprocess.run([*command, f"--junit-xml={report}"], cwd=ROOT, env=variables, check=False)
    counts, failed = _read_counts(report)
    return finished.returncode, counts, failed


def _read_counts(report: Path) -> tuple[Counts, list[str]]:
    counts = Counts()
    failed: list[str] = []
    if not report.is_file():
        return counts, failed
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in kinds:
            counts.skipped += 1
        else:
            counts.passed += 1
    counts.failed = len(failed)
    return counts, failed


def _report(line: str) -> None:
    print(f"[setup] {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", help="names of suites; all when none is given")
    parser.add_argument("--list", action="store_true", help="list the suites and stop")
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
            excused = environment.lacking and suite.environment != "coordinator"
            counts = Counts(skipped=1) if excused else Counts(failed=1)
            note = f"no environment: {environment.reason} (to fix it: {environment.remedy})"
        else:
            counts = run_suite(suite, environment, options)
            note = f"{time.monotonic() - started:.0f} s, Python {environment.version}"
        total.add(counts)
        numbers = f"{counts.passed:>6} passed{counts.failed:>5} failed{counts.skipped:>5} skipped"
        summary.append(f"{suite.name:<18}{numbers}   {note}")
    print("\n" + "\n".join(summary))
    for test in total.retried:
        print(f"passed only at the second try: {test}")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed or total.passed == 0 else 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
