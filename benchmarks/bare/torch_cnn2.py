"""cnn2 in plain PyTorch, as a user writes it without Crosstrain: the yardstick for its overhead.

Two 3x3 convolutions (32, 64) with ReLU and 2x2 max-pool, dense 128 with ReLU, dense 10; SGD 0.05 with
momentum 0.9. Prints one JSON line: ``step_seconds`` (a step includes fetching its batch and reading its
loss), ``first_step_seconds`` (from the start of the process to the end of the first step), ``step_samples``
and the last loss.
Batches are rows of a tensor in memory, which is faster than a ``DataLoader`` and so the harder yardstick.

    python torch_cnn2.py train.npz --steps 200 --threads 1
"""

import argparse
import json
import os
import time


def seconds_since_process_start():
    """Age of this process in seconds (Linux)."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("data", help="npz file with images (N, [channels,] height, width) and labels")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--threads", type=int, default=0, help="threads of an operation; 0: PyTorch's default")
parser.add_argument("--compile", action="store_true", help="use torch.compile")
parser.add_argument("--deterministic", action="store_true", help="allow deterministic kernels only")
arguments = parser.parse_args()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

if arguments.threads:
    torch.set_num_threads(arguments.threads)
if arguments.deterministic:
    torch.use_deterministic_algorithms(True)
torch.manual_seed(0)


def load(path):
    """Images (N, channels, height, width) float32 in 0..1 and labels int64."""
    with np.load(path, allow_pickle=False) as file:
        pairs = [("x_train", "y_train"), ("images", "labels"), ("x", "y")]
        images, labels = next((file[x], file[y]) for x, y in pairs if x in file.files)
    scale = 255 if images.dtype == np.uint8 else 1
    images = images[:, None] if images.ndim == 3 else images
    images = images.astype(np.float32) / np.float32(scale)
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def batches(images, labels, size):
    """Shuffled batches for ever, the last one of an epoch smaller."""
    while True:
        for rows in torch.randperm(len(images)).split(size):
            yield images[rows], labels[rows]


images, labels = load(arguments.data)
channels, height, width = images.shape[1:]
model = nn.Sequential(
    nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 128), nn.ReLU(), nn.Linear(128, arguments.classes),
)  # fmt: skip
if arguments.compile:
    model = torch.compile(model)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=arguments.momentum)

step_seconds = []
first_step_seconds = None
source = batches(images, labels, arguments.batch_size)
for _ in range(arguments.steps):
    start = time.perf_counter()
    x, y = next(source)
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    last_loss = loss.item()
    step_seconds.append(time.perf_counter() - start)
    if first_step_seconds is None:
        first_step_seconds = seconds_since_process_start()

steps_per_epoch = -(-len(images) // arguments.batch_size)
step_samples = [min(arguments.batch_size, len(images) - step % steps_per_epoch * arguments.batch_size)
                for step in range(len(step_seconds))]
print(json.dumps({"engine": "torch", "version": torch.__version__, "first_step_seconds": first_step_seconds,
                  "step_seconds": step_seconds, "step_samples": step_samples, "last_loss": last_loss}))
