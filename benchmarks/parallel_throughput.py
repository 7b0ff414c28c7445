"""Training on several ranks through a service against the framework's own launcher, in interleaved pairs.

Both train cnn2 with a global batch of 64, SGD 0.05 and momentum 0.9 on the same images, with the same number of ranks
and of threads in each. Every pair runs one after the other, in alternating order; its figure is the steps per second of
the service divided by those of the bare script (torchrun, horovodrun, mpiexec, or the script alone where the
framework drives all ranks from one process), over the steps after --warm-up. Shown are the median of the pairs
and its 95 % confidence interval by the bootstrap.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bare_runs import Images, interleaved, make_images, run_bare, train
from crosstrain.scaling.bare import SCRIPTS, BareScript, BareScriptFailed, BareSettings
from crosstrain_service import capabilities
from crosstrain_service.capabilities import UNSUPPORTED
from crosstrain_service.training import Execution, Parallel
from tests.support import catalogue
from tests.support.catalogue import EngineId
from tests.support.service import Service, features

DRAWS = 10_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="", help="name or name@version, separated by commas (default: all)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of both sides; 64 must be a multiple of it")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs per engine and backend")
    parser.add_argument("--steps", type=int, default=150, help="steps of each run")
    parser.add_argument("--warm-up", type=int, default=30, help="steps left out of the throughput")
    parser.add_argument("--threads", type=int, default=1, help="threads of each rank")
    parser.add_argument("--same-allocator", action="store_true",
                        help="bare scripts get the settings of malloc that services give to training")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    figures = []
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        data = make_images(Path(folder))
        for engine in catalogue.choose(arguments.engines):
            for (name, backend), script in SCRIPTS.items():
                if name != engine.name or not backend:
                    continue
                try:
                    found = measure(engine, backend, script, data, arguments)
                except BareScriptFailed as reason:
                    print(f"{engine}, {backend}: {script}: {reason}", flush=True)
                    failed = True
                    continue
                figures += [found] if found else []
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if failed else 0


def measure(
    engine: EngineId, backend: str, script: BareScript, data: Images, arguments: argparse.Namespace
) -> dict[str, Any] | None:
    """All pairs of one engine and backend; None where the engine does not declare it."""
    execution = Execution(intra_threads=arguments.threads, parallel=Parallel(data=arguments.ranks, backend=backend))
    settings = BareSettings(arguments.steps, arguments.threads)
    with Service(engine.service) as service:
        declared = features(service.describe()[engine.name])
        for name in capabilities.features_of_execution(execution):
            if name not in declared or declared[name].support == UNSUPPORTED:
                print(f"{engine}, {backend}: left out: {name} is not declared")
                return None

        def ours(name: str) -> float:
            run_id = f"throughput-{engine.name}-{backend}-{name}"
            timed = train(service, engine.name, data, run_id, arguments.steps, execution, drop_last=True)
            return statistics.median(timed.steps[arguments.warm_up :])

        def theirs(_name: str) -> float:
            timed = run_bare(script, engine, data, arguments.ranks, settings, arguments.same_allocator)
            return statistics.median(timed.steps[arguments.warm_up :])

        pairs = interleaved(arguments.pairs, ours, theirs)
    ratios = [pair["bare"] / pair["service"] for pair in pairs]
    low, high = interval(ratios)
    step = statistics.median(pair["service"] for pair in pairs)
    print(f"{str(engine):28} {backend:8} {arguments.ranks} ranks: throughput {statistics.median(ratios):.3f} "
          f"({low:.3f} to {high:.3f}), {step * 1e3:.1f} ms a step", flush=True)  # fmt: skip
    return {"engine": str(engine), "backend": backend, "ranks": arguments.ranks, "threads": arguments.threads,
            "pairs": pairs, "throughput": ratios, "interval": [low, high]}  # fmt: skip


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median."""
    random = np.random.RandomState(0)
    drawn = np.median(random.choice(ratios, (DRAWS, len(ratios))), axis=1)
    return float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


if __name__ == "__main__":
    sys.exit(main())
