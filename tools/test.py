"""Runs every test suite in the environment it belongs to and sums the results up.

Standard library only. ``tools/test.py [--list] [--jobs N] [suite ...] [-- pytest options]``. A suite whose
environment this machine cannot have (no such interpreter, a system package is missing) counts as skipped, with the
reason and the remedy; an environment that fails to build fails the run, and so does any of the coordinator's.

Three suites run at a time, since many of their tests wait; one that fails shows its whole output. A test that fails is
tried once more at the end, when nothing else runs: on a busy machine a time limit may be missed. What passed only then
is listed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "coordinator" / "src"))

from pytest_runs import Outcome, run_pytest  # noqa: E402
from suites import COORDINATOR, Suite, environment_of, suites  # noqa: E402

from crosstrain.launch.catalogue import Catalogue, load_catalogue  # noqa: E402
from crosstrain.launch.environments import Environment, Unavailable  # noqa: E402
from crosstrain.launch.extras import equipped_environment  # noqa: E402

#: Environments that are built at the same time.
_PARALLEL_BUILDS = 2
#: More failures than this are no accident.
_MOST_RETRIED = 5


@dataclass
class Result:
    """A suite's outcome, and what to say about it."""

    suite: Suite
    outcome: Outcome
    environment: Environment | None = None
    note: str = ""
    retried: list[str] = field(default_factory=list)


class Runner:
    """Runs suites; ``quiet`` keeps their output until they have ended."""

    def __init__(self, catalogue: Catalogue, options: list[str], cache: Path, quiet: bool) -> None:
        self._catalogue = catalogue
        self._options = options
        self._cache = cache
        self._quiet = quiet
        self._print = threading.Lock()

    def say(self, text: str) -> None:
        with self._print:
            print(text, flush=True)

    def run(self, suite: Suite) -> Result:
        """Builds the environment and runs the tests once."""
        self.say(f"\n=== {suite.name}" if not self._quiet else f"[start] {suite.name}")
        environment = environment_of(suite, self._catalogue, lambda line: self.say(f"[setup] {line}"))
        if isinstance(environment, Unavailable):
            excused = environment.lacking and suite.environment != COORDINATOR
            note = f"no environment: {environment.reason} (to fix it: {environment.remedy})"
            return Result(suite, Outcome(skipped=1) if excused else Outcome(failed=1), note=note)
        started = time.monotonic()
        outcome = run_pytest(suite, environment, self._options, self._cache / suite.name, quiet=self._quiet)
        seconds = f"{time.monotonic() - started:4.0f} s, {outcome.cpu_seconds:4.0f} s of CPU"
        note = f"{seconds}, Python {environment.version}"
        result = Result(suite, outcome, environment, note)
        if self._quiet:
            head = f"[done]  {summary(result)}"
            self.say(f"{head}\n{outcome.output}\n=== end of {suite.name}" if outcome.failed else head)
        return result

    def retry(self, result: Result) -> None:
        """Tries what failed once more, unless it is too much for an accident."""
        first = result.outcome
        if result.environment is None or not 0 < len(first.failures) <= _MOST_RETRIED:
            return
        self.say(f"\n=== {result.suite.name}: what failed, once more")
        again = run_pytest(
            result.suite, result.environment, self._options, self._cache / result.suite.name,
            failed_only=True, quiet=False,
        )  # fmt: skip
        result.retried = [test for test in first.failures if test not in again.failures]
        first.passed += len(result.retried)
        first.failed = max(again.failed, len(first.failures) - len(result.retried))


def summary(result: Result) -> str:
    found = result.outcome
    numbers = f"{found.passed:>6} passed{found.failed:>5} failed{found.skipped:>5} skipped"
    return f"{result.suite.name:<18}{numbers}   {result.note}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help="names of suites; all when none is given")
    parser.add_argument("--list", action="store_true", help="list the suites and stop")
    parser.add_argument("--jobs", type=int, default=3 if (os.cpu_count() or 1) > 1 else 1, help="suites at a time")
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
    build_services(catalogue, chosen)
    jobs = max(1, min(arguments.jobs, len(chosen)))
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(catalogue, options, Path(name), quiet=jobs > 1)
        with ThreadPoolExecutor(jobs) as pool:
            results = list(pool.map(runner.run, chosen))
        for result in results:
            runner.retry(result)
    return report(results)


def build_services(catalogue: Catalogue, chosen: list[Suite]) -> None:
    """Builds the environments of all services before suites that start them: a test that waited for a compiler would
    run into its time limit. What cannot be built, suites and tests report."""
    if not any(suite.folder.parent == ROOT / "tests" for suite in chosen):
        return
    with ThreadPoolExecutor(_PARALLEL_BUILDS) as pool:
        for service in catalogue.services:
            pool.submit(
                equipped_environment, service, catalogue, tests=True,
                progress=lambda line: print(f"[setup] {line}", flush=True),
            )  # fmt: skip


def report(results: list[Result]) -> int:
    """Prints the table and the sums; 0 if all tests passed."""
    print("\n" + "\n".join(summary(result) for result in results))
    for result in results:
        for test in result.retried:
            print(f"passed only at the second try: {test}")
    passed, failed, skipped = (
        sum(getattr(result.outcome, kind) for result in results) for kind in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or passed == 0 else 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before ``--`` and what stands after it."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
