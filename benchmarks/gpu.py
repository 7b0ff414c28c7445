"""What a machine with NVIDIA GPUs can show in five minutes: the PyTorch engine on a GPU against the reference's
arithmetic, its speed against a bare loop, and two ranks over NCCL where there are two GPUs.

    python3 benchmarks/gpu.py

It needs no service and no environment of this project, but a Python with PyTorch for CUDA, NumPy, safetensors,
protobuf and psutil: it uses the PyTorch that it is started with. Prints one line
for each check and a JSON document at the end; exits with 1 if a check fails. Without a GPU it says so and exits with 3
(``--cpu`` runs the same checks on the CPU, to try the script itself).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for _folder in ("protos/python", "coordinator/src", "services/common/src", "services/reference/src",
                "services/torch/src"):  # fmt: skip
    sys.path.insert(0, str(ROOT / _folder))

import numpy as np  # noqa: E402

from crosstrain_service import testing, weights  # noqa: E402
from crosstrain_service.training import Execution, Parallel, Ranks, Rule, Training  # noqa: E402

BATCH = 64
RATE = 0.05


def training(steps: int) -> Training:
    """SGD with momentum, as in the demonstration."""
    return Training(epochs=1, batch_size=BATCH, seed=0, rule=Rule("sgd", momentum=0.9, nesterov=False),
                    learning_rates=np.full(steps, RATE), max_steps=steps)  # fmt: skip


def data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 1, 28, 28) uint8 with a bar whose place is the label, and labels int64."""
    random = np.random.RandomState(0)
    labels = random.randint(0, 10, samples).astype(np.int64)
    images = random.randint(0, 60, (samples, 1, 28, 28)).astype(np.uint8)
    for index, label in enumerate(labels):
        images[index, 0, 2 * label + 3 : 2 * label + 5, 4:24] = 220
    return images, labels


def certificate(kind: str, precision: str, tf32: bool = False) -> dict[str, Any]:
    """Three recorded steps of cnn2 checked piece by piece."""
    from crosstrain.compare.certificate import certify
    from crosstrain.compare.certificate.comparison import Problem
    from crosstrain.compare.certificate.platform_streams import Data
    from crosstrain_service.probe import record_steps
    from crosstrain_torch.engine import TorchEngine

    model, settings = testing.cnn2(), training(3)
    images, labels = data(4 * BATCH)
    initial = weights.initial_parameters(model, 0)
    problem = Problem(model, settings, Data(images, labels, 255.0), initial, np.dtype(precision))
    engine = TorchEngine(model, settings, Execution(device=kind, precision=precision, allow_tf32=tf32))
    engine.load_parameters(initial)
    records = dict(record_steps(engine, problem_batches(problem), {0, 1, 2}))
    engine.close()
    found = certify(problem, records)
    worst = max(found.checks, key=lambda check: check.ratio)
    return {"checks": len(found.checks), "failed": len(found.failed), "worst": worst.ratio,
            "where": f"{worst.kind} of {worst.subject}"}  # fmt: skip


def problem_batches(problem: Any) -> Any:
    """The batches of a problem as a service feeds them."""
    from crosstrain_service.engine import Batch
    from crosstrain_service.streams import EpochOrders, batch_rows

    orders = EpochOrders(len(problem.data.labels), problem.training.seed)
    for step, rows in enumerate(batch_rows(orders.order(0), BATCH)):
        if step == problem.training.max_steps:
            return
        yield Batch(step, problem.data.inputs(rows).astype(problem.dtype), problem.data.labels[rows], RATE)


def speed(kind: str, pairs: int, steps: int) -> dict[str, Any]:
    """Throughput of the engine over that of a bare loop, interleaved pairs, both on batches in host memory."""
    ours = [sys.executable, __file__, "--engine-loop", str(steps)]
    bare = [sys.executable, __file__, "--bare-loop", str(steps)]
    options = ["--cpu"] if kind == "cpu" else []
    ratios = []
    for pair in range(pairs):
        order = (ours, bare) if pair % 2 else (bare, ours)
        seconds = {command[2]: _seconds(command + options) for command in order}
        ratios.append(seconds["--bare-loop"] / seconds["--engine-loop"])
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "pairs": pairs}


def _seconds(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "a loop failed")
    return float(done.stdout.strip().splitlines()[-1])


def engine_loop(kind: str, steps: int) -> float:
    """Median seconds of a step of the engine."""
    from crosstrain_torch import environment

    execution = Execution(device=kind, precision="float32", mode="parity", intra_threads=os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(environment("torch", execution, folder))
        from crosstrain_torch.engine import TorchEngine

        model = testing.cnn2()
        engine = TorchEngine(model, training(steps), execution)
        engine.load_parameters(weights.initial_parameters(model, 0))
        loop = _TimedLoop(testing.make_batches(model, steps, BATCH, RATE))
        engine.train(loop)
        engine.synchronize()
    return statistics.median(loop.seconds[steps // 5 :])


class _TimedLoop(testing.ListLoop):
    def __init__(self, batches: Any) -> None:
        super().__init__(batches)
        self.seconds: list[float] = []
        self._mark = time.perf_counter()

    def step_done(self, loss: Any, *arguments: Any, **options: Any) -> None:
        super().step_done(loss, *arguments, **options)
        now = time.perf_counter()
        self.seconds.append(now - self._mark)
        self._mark = now


def bare_loop(kind: str, steps: int) -> float:
    """Median seconds of a step as a user writes it."""
    import torch
    from torch import nn

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(os.cpu_count() or 1)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    ).to(kind)  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    seconds = []
    for batch in testing.make_batches(testing.cnn2(), steps, BATCH, RATE):
        begin = time.perf_counter()
        x, y = torch.from_numpy(batch.x).to(kind), torch.from_numpy(batch.labels).to(kind)
        loss = criterion(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[steps // 5 :])


def ranks(kind: str, count: int, steps: int) -> dict[str, Any]:
    """Largest difference of the parameters of ``count`` ranks from those of one, relative to a tensor's largest."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--cpu"] if kind == "cpu" else []
        shared = [sys.executable, __file__, "--steps", str(steps), "--folder", folder, *options]
        processes = [
            subprocess.Popen([*shared, "--rank-of", str(count), "--rank", str(number)]) for number in range(count)
        ]
        alone = subprocess.run([*shared, "--rank-of", "1", "--rank", "0"], check=False)
        codes = [process.wait() for process in processes] + [alone.returncode]
        if any(codes):
            raise RuntimeError(f"ranks ended with {codes}")
        one, several = (np.load(Path(folder) / f"{name}.npz", allow_pickle=False) for name in (1, count))
        worst = max(float(np.abs(one[name] - several[name]).max() / np.abs(one[name]).max()) for name in one.files)
    return {"ranks": count, "worst": worst}


def rank(kind: str, count: int, number: int, steps: int, folder: str) -> None:
    """One rank: trains on its shares; rank 0 leaves the parameters in the folder."""
    from crosstrain_service.engine import Batch
    from crosstrain_service.parallel.shares import share_slice
    from crosstrain_torch import environment

    place = Ranks(rank=number, size=count, local_rank=number, local_size=count, hosts=("127.0.0.1",) * count,
                  ports=(0,) * count, folder=folder)  # fmt: skip
    execution = Execution(device=kind, device_index=number, precision="float32", parallel=Parallel(data=count),
                          ranks=place if count > 1 else Ranks())  # fmt: skip
    os.environ.update(environment("torch", execution, folder))
    from crosstrain_torch.engine import TorchEngine

    model = testing.cnn2()
    engine = TorchEngine(model, training(steps), execution)
    engine.load_parameters(weights.initial_parameters(model, 0))
    shares = []
    for batch in testing.make_batches(model, steps, BATCH - 1, RATE):
        rows = share_slice(len(batch.labels), count, number)
        shares.append(Batch(batch.step, batch.x[rows], batch.labels[rows], RATE, {}, rows.stop - rows.start, BATCH - 1))
    engine.train(testing.ListLoop(shares))
    found = engine.parameters()
    if number == 0:
        np.savez(Path(folder) / f"{count}.npz", **found)
    engine.close()


def main() -> int:
    """Runs the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="on the CPU, to try the script")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of the speed comparison")
    parser.add_argument("--steps", type=int, default=300, help="steps of each side")
    for hidden in ("--engine-loop", "--bare-loop", "--rank-of", "--rank"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kind = "cpu" if options.cpu else "cuda"
    if options.engine_loop:
        print(engine_loop(kind, options.engine_loop))
        return 0
    if options.bare_loop:
        print(bare_loop(kind, options.bare_loop))
        return 0
    if options.rank_of:
        rank(kind, options.rank_of, options.rank, options.steps, options.folder)
        return 0
    return checks(kind, options)


def checks(kind: str, options: argparse.Namespace) -> int:
    """All checks in order; what fails does not stop the others."""
    import torch

    if kind == "cuda" and not torch.cuda.is_available():
        print("PyTorch sees no GPU here", file=sys.stderr)
        return 3
    count = torch.cuda.device_count() if kind == "cuda" else 2
    report: dict[str, Any] = {"torch": torch.__version__, "devices": count, "kind": kind}
    if kind == "cuda":
        report["gpu"] = torch.cuda.get_device_name(0)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    failed = 0
    wanted: list[tuple[str, Any, Any]] = [
        ("float32", lambda: certificate(kind, "float32"), lambda found: found["failed"] == 0),
        ("float64", lambda: certificate(kind, "float64"), lambda found: found["failed"] == 0),
        ("speed", lambda: speed(kind, options.pairs, options.steps), lambda found: found["median"] >= 0.98),
    ]
    if kind == "cuda":
        # TF32 is another function on purpose: the certificate must say so.
        wanted.insert(2, ("tf32", lambda: certificate(kind, "float32", True), lambda found: found["failed"] > 0))
    if count > 1:
        wanted.append(("ranks", lambda: ranks(kind, 2, 5), lambda found: found["worst"] < 1e-5))
    for name, run, good in wanted:
        begin = time.monotonic()
        try:
            found = run()
            ok = good(found)
        except Exception as error:  # noqa: BLE001 - the other checks are worth having
            found, ok = {"error": f"{type(error).__name__}: {error}"}, False
        report[name] = found
        failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name}: {json.dumps(found)} ({time.monotonic() - begin:.0f} s)", flush=True)
    if count < 2:
        print("NCCL between ranks needs two GPUs: not tried")
    print(json.dumps(report))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
