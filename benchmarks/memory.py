"""Resident memory of the coordinator and of every service front after a job, in MB (10^6 bytes).

Starts a coordinator and every service of the catalogue that can run here, registers them, has each engine train a few
steps through the coordinator, and reads the resident memory of the processes themselves (not of the runs' children).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from crosstrain.client import Client
from crosstrain_protos.v1 import data_pb2
from tests.support import catalogue
from tests.support.service import Service, ServiceUnavailable

DOCUMENT = """
name: memory
model: cnn2
training: {epochs: 1, max_steps: %d, batch_size: 64, optimizer: {sgd: {learning_rate: 0.05, momentum: 0.9}}}
engines: [%s]
cross_evaluate: false
verdict: {judge: false}
"""


def megabytes(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 1e6


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="steps of each engine")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port_file = folder / "port"
        coordinator = subprocess.Popen([
            sys.executable, "-m", "crosstrain.api", "--listen", "127.0.0.1:0", "--state-dir", str(folder / "state"),
            "--port-file", str(port_file)])  # fmt: skip
        stack.callback(coordinator.terminate)
        while not port_file.exists():
            time.sleep(0.05)
        address = f"127.0.0.1:{int(port_file.read_text())}"
        fronts, engines = [], []
        for entry in catalogue.catalogue().services:
            try:
                service = stack.enter_context(Service(entry.name, options=("--coordinator", address)))
            except ServiceUnavailable as error:
                print(f"{entry.name} left out: {error}")
                continue
            fronts.append(service)
            engines += [f"{name}@{version}" for name, version in entry.engines.items()]
        client = stack.enter_context(Client(address))
        while len({engine.service for engine in client.list_engines()}) < len(fronts):
            time.sleep(0.1)
        pixels = np.random.RandomState(0).randint(0, 256, (4000, 1, 28, 28)).astype(np.uint8)
        data = data_pb2.Dataset(
            pixels_digest=client.upload(npy(pixels)), labels_digest=client.upload(npy(np.arange(4000) % 10)),
            samples=4000, input_shape=(1, 28, 28), classes=10, divisor=255)  # fmt: skip
        client.create_job(DOCUMENT % (arguments.steps, ", ".join(engines)), data, data, "memory")
        events = sum(1 for _ in client.watch_job("memory"))
        print(f"{len(engines)} engines, {events} events")
        print(f"{'coordinator':20} {megabytes(coordinator.pid):6.0f} MB   target 200")
        for service in fronts:
            print(f"{service.name:20} {megabytes(service.process.pid):6.0f} MB   target 120")
    return 0


if __name__ == "__main__":
    sys.exit(main())
