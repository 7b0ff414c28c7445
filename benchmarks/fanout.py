"""Time to fan a job out: Train sent to every service at once until the last has answered.

Every service of the catalogue that can run here gets the same training run (which is cancelled at once); the
artifacts are there already, as for the second job on the same data. Prints median and 95th percentile.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time

import numpy as np

from crosstrain_protos.v1 import run_pb2, service_pb2
from crosstrain_service import convert, testing, weights
from crosstrain_service.training import Execution, Rule, Training
from tests.support import catalogue, messages
from tests.support.service import Service, ServiceUnavailable


def requests(service: Service, engine: str) -> service_pb2.TrainRequest:
    model = testing.cnn2()
    pixels = np.zeros((640, 1, 28, 28), np.uint8)
    settings = Training(1, 64, 0, Rule("sgd", momentum=0.9, nesterov=False), np.full(10, 0.05))
    return service_pb2.TrainRequest(engine=engine, spec=run_pb2.TrainSpec(
        model=convert.model_message(model),
        train=messages.dataset(service, pixels, np.zeros(640, np.int64), model, 255.0),
        training=messages.training(service, settings), execution=messages.execution(Execution()),
        initial_weights_digest=service.upload_tensors(weights.initial_parameters(model, 0))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        ready = []
        for entry in catalogue.catalogue().services:
            try:
                service = stack.enter_context(Service(entry.name))
            except ServiceUnavailable as error:
                print(f"{entry.name} left out: {error}")
                continue
            engine = next(name for name, item in service.describe().items() if not item.unavailable_reason)
            ready.append((service, requests(service, engine)))
        times = []
        for job in range(arguments.jobs):
            for _, request in ready:
                request.run_id = f"job-{job}"
            begin = time.perf_counter()
            for call in [service.training.Train.future(request) for service, request in ready]:
                call.result(timeout=30)
            times.append((time.perf_counter() - begin) * 1e3)
            for service, request in ready:
                service.training.CancelRun(service_pb2.CancelRunRequest(run_id=request.run_id))
            time.sleep(0.5)  # the processes of the cancelled runs are gone before the next job
        times.sort()
        print(f"{len(ready)} services, {len(times)} jobs: median {statistics.median(times):.1f} ms, "
              f"95th percentile {times[int(len(times) * 0.95)]:.1f} ms, target median 20 ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
