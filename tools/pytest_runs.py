"""Runs one suite's pytest in its environment and reads what came out. Standard library only."""

from __future__ import annotations

import os
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from suites import ROOT, Suite

from crosstrain.launch.environments import Environment

#: One test, on a machine that runs another suite at the same time and builds networks for the first time.
_TEST_SECONDS = 600
_NO_TESTS_COLLECTED = 5


@dataclass
class Outcome:
    """What a suite's tests did. ``output`` is empty where it went straight to the terminal.

    ``cpu_seconds`` are those of pytest and of the processes that it or a child of it has waited for.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    cpu_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    output: str = ""


def run_pytest(
    suite: Suite, environment: Environment, options: list[str], cache: Path, *, failed_only: bool = False, quiet: bool
) -> Outcome:
    """Runs a suite, or what failed of it before; a crash of pytest itself counts as one failure.

    ``cache`` is a folder that keeps from one call to the next which tests failed.
    """
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.xml"
        command = [
            str(environment.python), "-m", "pytest", str(suite.folder), "-q", "-o", f"cache_dir={cache}",
            f"--timeout={_TEST_SECONDS}", f"--junit-xml={report}", *options,
        ]  # fmt: skip
        if failed_only:
            command += ["--last-failed", "--last-failed-no-failures=none"]
        variables = {**os.environ, **environment.variables(), **suite.variables}
        # Every suite may compare with the reference, whose library needs nothing but NumPy.
        paths = [variables["PYTHONPATH"], str(ROOT / "services" / "reference" / "src")]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
        # Other suites run beside it: threads of one product would only wait for each other.
        variables.setdefault("OMP_NUM_THREADS", "1")
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=variables,
                stdout=output if quiet else None, stderr=subprocess.STDOUT if quiet else None,
            )  # fmt: skip
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            text = output.read().decode(errors="replace")
        outcome = _read(report)
    outcome.output = text
    outcome.cpu_seconds = usage.ru_utime + usage.ru_stime
    if process.returncode not in (0, _NO_TESTS_COLLECTED) and outcome.failed == 0:
        outcome.failed = 1
    return outcome


def _read(report: Path) -> Outcome:
    outcome = Outcome()
    if not report.is_file():
        return outcome
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcome.failures.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in kinds:
            outcome.skipped += 1
        else:
            outcome.passed += 1
    outcome.failed = len(outcome.failures)
    return outcome
