"""Training on several ranks through a service against the framework's own launcher, in interleaved pairs.

Both train cnn2 with a global batch of 64, SGD 0.05 and momentum 0.9 on the same images, with the same number of ranks
and of threads in each. Every pair runs one after the other, in alternating order; its figure is the steps per second of
the service divided by those of the bare script (torchrun, horovodrun, mpiexec, or the script alone where the
framework drives all ranks from one process), over the steps after --warm-up: the beginning of an epoch counts on
both sides; the evaluation and the checkpoint at its end, which bare scripts do not have, do not. Shown are the median
of the pairs and its 95 % confidence interval by the bootstrap, and the same for the median step alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Step(NamedTuple):
    """Seconds of a step of one run."""

    mean: float
    median: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Step:
        return cls(statistics.mean(seconds), statistics.median(seconds))


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

        def ours(name: str) -> Step:
            run_id = f"throughput-{engine.name}-{backend}-{name}"
            timed = train(service, engine.name, data, run_id, arguments.steps, execution, drop_last=True)
            return Step.of(timed.steps[arguments.warm_up :])

        def theirs(_name: str) -> Step:
            timed = run_bare(script, engine, data, arguments.ranks, settings, arguments.same_allocator)
            return Step.of(timed.steps[arguments.warm_up :])

        pairs = interleaved(arguments.pairs, ours, theirs)
    throughput = [pair["bare"].mean / pair["service"].mean for pair in pairs]
    median_step = [pair["bare"].median / pair["service"].median for pair in pairs]
    mean = statistics.median(pair["service"].mean for pair in pairs)
    print(f"{str(engine):28} {backend:8} {arguments.ranks} ranks: throughput {shown(throughput)}, {mean * 1e3:.1f} ms "
          f"a step; by the median step {shown(median_step)}", flush=True)  # fmt: skip
    return {"engine": str(engine), "backend": backend, "ranks": arguments.ranks, "threads": arguments.threads,
            "pairs": [{side: step._asdict() for side, step in pair.items()} for pair in pairs],
            "throughput": throughput, "interval": interval(throughput),
            "median_step": median_step, "median_step_interval": interval(median_step)}  # fmt: skip


def shown(ratios: Sequence[float]) -> str:
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median."""
    random = np.random.RandomState(0)
    drawn = np.median(random.choice(ratios, (DRAWS, len(ratios))), axis=1)
    return float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


if __name__ == "__main__":
    sys.exit(main())
