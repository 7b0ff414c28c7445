"""Training through a service against a bare script of the same framework, in interleaved pairs.

Both train cnn2 with batch 64, SGD 0.05 and momentum 0.9 on the same images with the same number of threads. Every
pair runs one after the other, in alternating order. Two figures per engine:

- throughput: steps per second of the service divided by that of the bare script, over the steps after
  --warm-up;
- first step: seconds from sending Train until the first step is reported, divided by seconds from starting the
  bare script until its first step is done. Both start a fresh process that imports the framework.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bare_runs import Images, Timed, interleaved, make_images, run_bare, train
from crosstrain.scaling.bare import SCRIPTS, BareScript, BareScriptFailed, BareSettings
from crosstrain_service.training import Execution
from tests.support import catalogue
from tests.support.catalogue import EngineId
from tests.support.service import Service


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="", help="name or name@version, separated by commas (default: all)")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs per engine")
    parser.add_argument("--steps", type=int, default=120, help="steps of each run")
    parser.add_argument("--warm-up", type=int, default=20, help="steps left out of the throughput")
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides")
    parser.add_argument("--own-ops", action="store_true",
                        help="bare scripts use their framework's own operations where these compute something else")
    parser.add_argument("--same-allocator", action="store_true",
                        help="bare scripts get the settings of malloc that services give to training")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        data = make_images(Path(folder))
        for engine in catalogue.choose(arguments.engines):
            script = SCRIPTS.get((engine.name, ""))
            if script is None:
                print(f"{engine}: no bare script, left out")
                continue
            try:
                figures.append(measure(engine, script, data, arguments))
            except BareScriptFailed as reason:
                sys.exit(str(reason))
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def measure(engine: EngineId, script: BareScript, data: Images, arguments: argparse.Namespace) -> dict[str, Any]:
    """All pairs of one engine."""
    execution = Execution(intra_threads=arguments.threads)
    settings = BareSettings(arguments.steps, arguments.threads, canonical_ops=not arguments.own_ops)

    def figures(timed: Timed) -> dict[str, float]:
        return {"first": timed.first, "step": statistics.median(timed.steps[arguments.warm_up :])}

    with Service(engine.service) as service:
        pairs = interleaved(
            arguments.pairs,
            lambda name: figures(
                train(service, engine.name, data, f"overhead-{engine.name}-{name}", arguments.steps, execution)
            ),
            lambda name: figures(run_bare(script, engine, data, 1, settings, arguments.same_allocator)),
        )
    throughput = [pair["bare"]["step"] / pair["service"]["step"] for pair in pairs]
    first = [pair["service"]["first"] / pair["bare"]["first"] for pair in pairs]
    step = statistics.median(pair["service"]["step"] for pair in pairs)
    print(f"{str(engine):28} throughput {spread(throughput)}   first step {spread(first)}   "
          f"({step * 1e3:.1f} ms a step, first after "
          f"{statistics.median(pair['service']['first'] for pair in pairs):.2f} s)", flush=True)
    return {"engine": str(engine), "threads": arguments.threads, "pairs": pairs, "throughput": throughput,
            "first_step": first}


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    sys.exit(main())
