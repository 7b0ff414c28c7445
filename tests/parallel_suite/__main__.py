"""``python -m tests.parallel_suite``: N ranks against one, everywhere, and planted faults; ends with one line of counts."""

from __future__ import annotations

import argparse
import sys

from tests.support.catalogue import choose

from .execute import Execution
from .nets import cases


def main() -> int:
    """Runs the suite."""
    parser = argparse.ArgumentParser(prog="tests.parallel_suite", description=__doc__)
    parser.add_argument("--only", default="", help="engines (name or name@version), separated by commas")
    parser.add_argument("--strategy", default="", help="only strategies whose title holds this text")
    parser.add_argument("--cases", default="", help="names of cases, separated by commas")
    parser.add_argument("--workers", type=int, default=2, help="service processes at a time")
    options = parser.parse_args()
    names = options.cases.split(",") if options.cases else [case.name for case in cases()]
    chosen = tuple(case for case in cases() if case.name in names)
    execution = Execution(lambda line: print(line, flush=True), chosen, options.strategy)
    results = execution.run(choose(options.only), options.workers)
    good = sum(parity.holds for parity in results.parity)
    print(f"parity {good}/{len(results.parity)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
