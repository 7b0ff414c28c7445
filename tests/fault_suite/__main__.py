"""``python -m tests.fault_suite``: all seeded faults and clean pairs; prints a table and one line of counts.

Exits with 1 unless at least 95 % of the faults are caught, 90 % named exactly, and no clean pair raises an
alarm. ``--only`` and ``--no-clean`` run a part, which writes no documentation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.support.catalogue import ROOT, choose

from . import table
from .execute import Execution
from .plan import Process, clean_processes, fault_processes


def main() -> int:
    """Runs the suite."""
    parser = argparse.ArgumentParser(prog="tests.fault_suite", description=__doc__)
    parser.add_argument("--only", default="", help="engines (name or name@version), separated by commas")
    parser.add_argument("--no-clean", action="store_true", help="faults only")
    parser.add_argument("--no-faults", action="store_true", help="clean pairs only")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "fault-suite.json", help="file of results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "fault-suite.md", help="document to update")
    parser.add_argument("--workers", type=int, default=2, help="service processes at a time")
    options = parser.parse_args()
    processes: list[Process] = []
    if not options.no_faults:
        processes += fault_processes()
    if not options.no_clean:
        processes += clean_processes()
    if options.only:
        processes = _restricted(processes, options.only)
    results = Execution(lambda line: print(line, flush=True)).run(processes, options.workers)
    summary = table.Summary(results)
    print(table.text_table(results))
    for line in [*summary.errors, *summary.alarms]:
        print(line)
    table.write_json(results, options.json)
    whole = not (options.only or options.no_clean or options.no_faults or results.missing)
    if whole:
        table.write_document(results, options.docs)
    print(f"{results.seconds:.0f} s; details in {options.json}")
    print(summary.line)
    return 0 if summary.passed else 1


def _restricted(processes: list[Process], text: str) -> list[Process]:
    engines = set(choose(text))
    found = []
    for process in processes:
        batches = tuple(batch for batch in process.batches if batch.engine in engines)
        if batches:
            found.append(Process(process.service, process.faulty, process.variables, batches))
    return found


if __name__ == "__main__":
    sys.exit(main())
