"""cnn2 in plain PyTorch on several ranks by ``DistributedDataParallel``, as a user writes it without Crosstrain.

The network, batch and rate are those of ``torch_cnn2.py``: the batch size is that of all ranks together, and every rank
takes an equal share of the rows of each shuffled batch. Rank 0 prints one JSON line: ``step_seconds`` (a step includes
fetching its rows and reading its loss), ``first_step_seconds`` (from the start of the process to the end of
the first step), ``step_samples`` and the last loss over its own rows.

    torchrun --standalone --nproc-per-node 2 torch_ddp_cnn2.py train.npz --steps 200 --threads 1
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
parser.add_argument("--batch-size", type=int, default=64, help="samples of all ranks together, a multiple of them")
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--threads", type=int, default=0, help="threads of an operation; 0: what torchrun sets")
parser.add_argument("--deterministic", action="store_true", help="allow deterministic kernels only")
arguments = parser.parse_args()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

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


def batches(images, labels, size, rank, ranks):
    """This rank's shares of shuffled batches for ever; what does not fill a batch is left out."""
    while True:
        order = torch.randperm(len(images))
        for rows in order[:len(order) // size * size].view(-1, ranks, size // ranks)[:, rank]:
            yield images[rows], labels[rows]


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
images, labels = load(arguments.data)
channels, height, width = images.shape[1:]
model = DistributedDataParallel(nn.Sequential(
    nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 128), nn.ReLU(), nn.Linear(128, arguments.classes),
))  # fmt: skip
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=arguments.momentum)

step_seconds = []
first_step_seconds = None
source = batches(images, labels, arguments.batch_size, rank, ranks)
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

step_samples = [arguments.batch_size] * len(step_seconds)
if rank == 0:
    print(json.dumps({"engine": "torch", "version": torch.__version__, "ranks": ranks,
                      "first_step_seconds": first_step_seconds, "step_seconds": step_seconds,
                      "step_samples": step_samples, "last_loss": last_loss}), flush=True)
dist.destroy_process_group()
# PyTorch 2.13 sometimes aborts while Python frees what is left ("terminate called without an active exception").
os._exit(0)
