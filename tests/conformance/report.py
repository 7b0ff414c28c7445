"""``python -m tests.conformance.report ENGINE [--native]``: prints how an engine does on every case."""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict

from crosstrain.compare.certificate.checks import Check, check_records
from tests.support.catalogue import choose
from tests.support.service import Service

from .cases import CASES
from .suite import PRECISIONS, Conformance, lacking, wanted


def main() -> int:
    """Runs the cases and prints failures and the worst ratio of every kind of check."""
    parser = argparse.ArgumentParser(prog="tests.conformance.report", description=__doc__)
    parser.add_argument("engine", help="name or name@version")
    parser.add_argument("--native", action="store_true", help="native semantics: shows what differs")
    parser.add_argument("--precision", choices=PRECISIONS, help="only this one")
    options = parser.parse_args()
    failed = 0
    for engine in choose(options.engine):
        with Service(engine.service) as service:
            suite = Conformance(service, engine.name, "native" if options.native else "canonical")
            for precision in [options.precision] if options.precision else PRECISIONS:
                begin = time.monotonic()
                failed += _report(suite, precision)
                print(f"{engine} {precision}: {time.monotonic() - begin:.0f} s", flush=True)
    return 1 if failed else 0


def _report(suite: Conformance, precision: str) -> int:
    worst: dict[str, Check] = {}
    where: dict[str, str] = {}
    bad = 0
    refused = defaultdict(list)
    for case in CASES:
        if not wanted(case, precision, suite.declared):
            continue
        missing = lacking(case, precision, suite.declared)
        if missing:
            refused[", ".join(sorted(missing))].append(case.name)
            continue
        outcome = suite.outcome(case, precision)
        if outcome.error:
            bad += 1
            print(f"  {case.name}: {outcome.error[:400]}")
        failures = []
        for check in check_records(case.problem(precision), outcome.records):
            if not check.holds:
                failures.append(check)
            if check.kind not in worst or check.ratio > worst[check.kind].ratio:
                worst[check.kind], where[check.kind] = check, case.name
        if failures:
            bad += 1
            print(f"  {case.name}: {len(failures)} checks fail, first: {failures[0]}")
            for kind in sorted({item.kind for item in failures} - {failures[0].kind}):
                print(f"      also {next(item for item in failures if item.kind == kind)}")
    for names, cases in refused.items():
        print(f"  not declared: {names}: {', '.join(cases)}")
    for kind, check in worst.items():
        print(f"  worst {kind}: {check.ratio:.3f} ({where[kind]}, step {check.step}, {check.subject})")
    return bad


if __name__ == "__main__":
    sys.exit(main())
