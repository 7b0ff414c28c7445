"""``python -m tests.parallel_suite``: N ranks against one in every engine, and faults between ranks.

Prints progress and ends with one line of counts. ``--only``, ``--strategy`` and the like run a part, which writes no
documentation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.support.catalogue import ROOT, choose

from . import table
from .execute import Execution, Results
from .faults import FAULTS
from .nets import cases


def main() -> int:
    """Runs the suite."""
    parser = argparse.ArgumentParser(prog="tests.parallel_suite", description=__doc__)
    parser.add_argument("--only", default="", help="engines (name or name@version), separated by commas")
    parser.add_argument("--strategy", default="", help="only strategies whose title holds this text")
    parser.add_argument("--cases", default="", help="names of cases, separated by commas")
    parser.add_argument("--no-faults", action="store_true", help="parity only")
    parser.add_argument("--no-parity", action="store_true", help="faults only")
    parser.add_argument("--join", action="store_true",
                        help="keep the file's results of what does not run now, and write the documentation")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "parallel-suite.json", help="file of results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "parallel-suite.md", help="document to update")
    parser.add_argument("--workers", type=int, default=2, help="services, and processes that judge, at a time")
    options = parser.parse_args()
    names = options.cases.split(",") if options.cases else [case.name for case in cases()]
    chosen = tuple(case for case in cases() if case.name in names)
    before = table.read_json(options.json) if options.join and options.json.exists() else Results()

    def keep(results: Results) -> None:
        table.write_json(table.joined(before, results), options.json)

    execution = Execution(lambda line: print(line, flush=True), chosen, options.strategy, keep)
    planted = () if options.no_faults else FAULTS
    results = execution.run(choose(options.only), options.workers, parity=not options.no_parity, planted=planted)
    summary = table.Summary(results)
    keep(results)
    results = table.joined(before, results)
    part = (options.only, options.strategy, options.cases, options.no_parity, options.no_faults)
    if options.join or not any(part):
        table.write_document(results, options.docs)
    print(f"{results.seconds:.0f} s; details in {options.json}")
    print(summary.line)
    return 0 if summary.passed else 1


if __name__ == "__main__":
    sys.exit(main())
