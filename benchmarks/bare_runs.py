"""What benchmarks share that set training through a service against a bare script: cnn2, batch 64, SGD with momentum.

Which script belongs to which engine, and what starts it, ``crosstrain.scaling.bare`` knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from crosstrain.scaling import bare
from crosstrain.scaling.bare import BareScript
from crosstrain_protos.v1 import run_pb2, service_pb2
from crosstrain_service import allocator, convert, testing, weights
from crosstrain_service.training import Execution, Rule, Training
from tests.support import catalogue, messages
from tests.support.catalogue import EngineId
from tests.support.service import Service

T = TypeVar("T")
#: A multiple of the batch of 64: some scripts drop what does not fill a batch and others train on it.
_SAMPLES = 4032


class Images(NamedTuple):
    """The same data for both sides: a file for scripts, arrays for the service."""

    file: Path
    images: np.ndarray
    labels: np.ndarray


class Timed(NamedTuple):
    """Seconds from the start of a run until its first step is done, and those of every step."""

    first: float
    steps: list[float]


def make_images(folder: Path) -> Images:
    """Random images of 28x28 in 10 classes."""
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (_SAMPLES, 1, 28, 28)).astype(np.uint8)
    labels = random.randint(0, 10, _SAMPLES).astype(np.int64)
    file = folder / "train.npz"
    np.savez(file, x_train=images.reshape(-1, 28, 28), y_train=labels)
    return Images(file, images, labels)


def interleaved(count: int, service: Callable[[str], T], bare: Callable[[str], T]) -> list[dict[str, T]]:
    """Pairs of runs one after the other, in alternating order; each side gets a name for its run.

    One pair before them is not measured: caches of compilers and files are warm for both sides alike.
    """
    sides = {"service": service, "bare": bare}
    pairs = []
    for index in range(-1, count):
        order = sorted(sides, reverse=index % 2 == 0)
        pair = {side: sides[side]("warm" if index < 0 else str(index)) for side in order}
        if index >= 0:
            pairs.append(pair)
    return pairs


def train(service: Service, engine: str, data: Images, run_id: str, steps: int, execution: Execution,
          drop_last: bool = False) -> Timed:  # fmt: skip
    """One run through the service; its start is when it is asked for."""
    model = testing.cnn2()
    settings = Training(epochs=1000, batch_size=64, seed=0, rule=Rule("sgd", momentum=0.9, nesterov=False),
                        learning_rates=np.full(steps, 0.05), max_steps=steps, drop_last=drop_last)  # fmt: skip
    spec = run_pb2.TrainSpec(
        model=convert.model_message(model),
        train=messages.dataset(service, data.images, data.labels, model, 255.0),
        training=messages.training(service, settings),
        execution=messages.execution(execution),
        initial_weights_digest=service.upload_tensors(weights.initial_parameters(model, 0)),
    )
    begin = time.time()
    service.training.Train(service_pb2.TrainRequest(run_id=run_id, engine=engine, spec=spec), timeout=60)
    first, seconds = 0.0, []
    for event in service.finish(run_id, 600):
        if event.WhichOneof("event") == "steps":
            if event.steps.first_step == 0:
                first = event.time.ToNanoseconds() / 1e9 - begin
            seconds += event.steps.step_seconds
    return Timed(first, seconds)


def run_bare(script: BareScript, engine: EngineId, data: Images, ranks: int, settings: bare.BareSettings,
             same_allocator: bool = False) -> Timed:  # fmt: skip
    """One run of a bare script; raises BareScriptFailed.

    Args:
        same_allocator: whether malloc is set for it as for training in services.
    """
    python = catalogue.environment(engine.service).python
    folder = bare.script_folder(catalogue.ROOT)
    words = bare.command(script, folder, python, ranks, data.file, settings)
    variables = bare.variables(python, settings.threads)
    if same_allocator:
        allocator.keep_memory(variables)
    times = bare.run_script(words, variables)
    return Timed(times.first, times.steps)
