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
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from crosstrain_protos.v1 import run_pb2, service_pb2
from crosstrain_service import convert, testing, weights
from crosstrain_service.training import Execution, Rule, Training
from tests.support import catalogue, messages
from tests.support.service import Service

BARE = Path(__file__).resolve().parent / "bare"
#: Options that make a bare script compute the same function where its users' own way does not.
SAME_FUNCTION = {"lasagne": ["--canonical-ops"], "keras-theano": ["--canonical-ops"]}
#: Options that give a bare script the settings of the run: deterministic kernels.
SAME_SETTINGS = {name: ["--deterministic"] for name in ("torch", "tensorflow", "keras-tensorflow")}
SAMPLES = 4000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="", help="name or name@version, separated by commas (default: all)")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs per engine")
    parser.add_argument("--steps", type=int, default=120, help="steps of each run")
    parser.add_argument("--warm-up", type=int, default=20, help="steps left out of the throughput")
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides")
    parser.add_argument("--own-ops", action="store_true",
                        help="bare scripts use their framework's own operations where these compute something else")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (SAMPLES, 1, 28, 28)).astype(np.uint8)
    labels = random.randint(0, 10, SAMPLES).astype(np.int64)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "train.npz"
        np.savez(data, x_train=images.reshape(-1, 28, 28), y_train=labels)
        for engine in catalogue.choose(arguments.engines):
            script = BARE / f"{engine.name.replace('-', '_')}_cnn2.py"
            if not script.exists():
                print(f"{engine}: no bare script, left out")
                continue
            figures.append(measure(engine, script, data, images, labels, arguments))
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def measure(engine, script, data, images, labels, arguments) -> dict:
    """All pairs of one engine."""
    with Service(engine.service) as service:
        # One pair unmeasured: compile caches and file caches are warm for both sides alike.
        run_service(service, engine, images, labels, arguments, "warm")
        run_bare(engine, script, data, arguments)
        pairs = []
        for index in range(arguments.pairs):
            order = ("service", "bare") if index % 2 == 0 else ("bare", "service")
            pair = {}
            for side in order:
                pair[side] = (run_service(service, engine, images, labels, arguments, str(index))
                              if side == "service" else run_bare(engine, script, data, arguments))
            pairs.append(pair)
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


def run_service(service, engine, images, labels, arguments, name) -> dict:
    """Median step and time to the first step of one run through the service, seconds."""
    model = testing.cnn2()
    settings = Training(epochs=1000, batch_size=64, seed=0, rule=Rule("sgd", momentum=0.9, nesterov=False),
                        learning_rates=np.full(arguments.steps, 0.05), max_steps=arguments.steps)
    spec = run_pb2.TrainSpec(
        model=convert.model_message(model), train=messages.dataset(service, images, labels, model, 255.0),
        training=messages.training(service, settings),
        execution=messages.execution(Execution(intra_threads=arguments.threads)),
        initial_weights_digest=service.upload_tensors(weights.initial_parameters(model, 0)))
    run_id = f"overhead-{engine.name}-{name}"
    begin = time.time()
    service.training.Train(service_pb2.TrainRequest(run_id=run_id, engine=engine.name, spec=spec), timeout=60)
    first, seconds = 0.0, []
    for event in service.finish(run_id, 600):
        if event.WhichOneof("event") == "steps":
            if event.steps.first_step == 0:
                first = event.time.ToNanoseconds() / 1e9 - begin
            seconds += event.steps.step_seconds
    return {"first": first, "step": statistics.median(seconds[arguments.warm_up:])}


def run_bare(engine, script, data, arguments) -> dict:
    """The same of the bare script."""
    environment = catalogue.environment(engine.service)
    command = [str(environment.python), str(script), str(data), "--steps", str(arguments.steps),
               "--threads", str(arguments.threads)]
    command += SAME_SETTINGS.get(engine.name, [])
    if not arguments.own_ops:
        command += SAME_FUNCTION.get(engine.name, [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script.name} failed: {done.stderr[-2000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return {"first": result["first_step_seconds"], "step": statistics.median(
        result["step_seconds"][arguments.warm_up:])}


if __name__ == "__main__":
    sys.exit(main())
