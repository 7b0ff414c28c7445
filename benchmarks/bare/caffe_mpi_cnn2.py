"""cnn2 in plain pycaffe on several ranks by MPI, as a user writes it: the yardstick for the overhead of Crosstrain.

Two 3x3 convolutions (32, 64) with ReLU and 2x2 max-pool, dense 128 with ReLU, dense 10; SGD 0.05 with momentum 0.9.
Every rank computes its share of a batch; before the update the gradients are added in Caffe's own memory. Rank 0
prints one JSON line: ``step_seconds`` (a step includes fetching its batch and reading its loss),
``first_step_seconds`` (from the start of the process to the end of the first step), ``step_samples`` and the last loss.

    mpiexec.gforker -n 2 python caffe_mpi_cnn2.py train.npz --steps 200 --threads 1
"""

import argparse
import json
import os
import tempfile
import time


def seconds_since_process_start():
    """Age of this process in seconds (Linux)."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("data", help="npz file with images (N, [channels,] height, width) and labels")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch-size", type=int, default=64, help="samples of a batch, all ranks together")
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--threads", type=int, default=0, help="threads of an operation; 0: OpenBLAS's default")
arguments = parser.parse_args()

if arguments.threads:
    os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
os.environ["GLOG_minloglevel"] = "2"
# Shared memory only, and a rank that waits lets others work.
os.environ.setdefault("UCX_TLS", "self,sm")
os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "10")
os.environ.setdefault("MPIR_CVAR_POSIX_POLL_FREQUENCY", "10")

import caffe  # noqa: E402
import numpy as np  # noqa: E402
from caffe import layers as L  # noqa: E402, N812
from caffe import params as P  # noqa: E402, N812
from mpi4py import MPI  # noqa: E402

comm = MPI.COMM_WORLD

SOLVER = """
train_net: "{net}" type: "SGD" base_lr: {rate} momentum: {momentum} lr_policy: "fixed" display: 0 random_seed: 0
snapshot_after_train: false
"""


def load(path):
    """Images (N, channels, height, width) float32 in 0..1 and labels float32."""
    with np.load(path, allow_pickle=False) as file:
        pairs = [("x_train", "y_train"), ("images", "labels"), ("x", "y")]
        images, labels = next((file[x], file[y]) for x, y in pairs if x in file.files)
    scale = 255 if images.dtype == np.uint8 else 1
    images = images[:, None] if images.ndim == 3 else images
    return images.astype(np.float32) / np.float32(scale), labels.astype(np.float32)


def network(batch_size, shape):
    """The network as prototxt."""
    filler = {"weight_filler": {"type": "xavier"}}
    net = caffe.NetSpec()
    net.data = L.Input(shape={"dim": [batch_size] + list(shape)})
    net.label = L.Input(shape={"dim": [batch_size]})
    top = net.data
    for number, width in ((1, 32), (2, 64)):
        top = net["conv%d" % number] = L.Convolution(top, num_output=width, kernel_size=3, pad=1, **filler)
        top = net["relu%d" % number] = L.ReLU(top, in_place=True)
        top = net["pool%d" % number] = L.Pooling(top, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    net.dense1 = L.InnerProduct(top, num_output=128, **filler)
    net.relu3 = L.ReLU(net.dense1, in_place=True)
    net.dense2 = L.InnerProduct(net.relu3, num_output=arguments.classes, **filler)
    net.loss = L.SoftmaxWithLoss(net.dense2, net.label)
    return str(net.to_proto())


def batches(images, labels, size):
    """This rank's shares of shuffled batches for ever, the last one of an epoch smaller, and their parts of it."""
    random = np.random.RandomState(0)
    while True:
        order = random.permutation(len(images))
        for start in range(0, len(images), size):
            rows = order[start:start + size]
            share = np.array_split(rows, comm.size)[comm.rank]
            part = len(share) / len(rows)
            share = share if len(share) else rows[:1]
            yield images[share], labels[share], part


images, labels = load(arguments.data)
with tempfile.TemporaryDirectory() as folder:
    paths = [os.path.join(folder, name) for name in ("train.prototxt", "solver.prototxt")]
    settings = SOLVER.format(net=paths[0], rate=arguments.learning_rate, momentum=arguments.momentum)
    texts = (network(arguments.batch_size, images.shape[1:]), settings)
    for path, text in zip(paths, texts):
        with open(path, "w") as file:
            file.write(text)
    caffe.set_mode_cpu()
    solver = caffe.SGDSolver(paths[1])
net = solver.net
gradients = [blob for blobs in net.params.values() for blob in blobs]
for blob in gradients:
    comm.Bcast(blob.data, root=0)


def add_gradients():
    """Adds the gradients of all ranks; the solver calls it before its update."""
    for blob in gradients:
        comm.Allreduce(MPI.IN_PLACE, blob.diff)


solver.add_callback(lambda: None, add_gradients)
step_seconds = []
first_step_seconds = None
source = batches(images, labels, arguments.batch_size)
for _ in range(arguments.steps):
    start = time.perf_counter()
    x, y, part = next(source)
    if len(x) != net.blobs["data"].shape[0]:
        net.blobs["data"].reshape(*x.shape)
        net.blobs["label"].reshape(*y.shape)
    net.blobs["data"].data[...] = x
    net.blobs["label"].data[...] = y
    # The weight of this rank's mean loss in that of the whole batch.
    net.blobs["loss"].diff[...] = part
    solver.step(1)
    last_loss = float(net.blobs["loss"].data)
    step_seconds.append(time.perf_counter() - start)
    if first_step_seconds is None:
        first_step_seconds = seconds_since_process_start()

last_loss = comm.allreduce(last_loss * part)
steps_per_epoch = -(-len(images) // arguments.batch_size)
step_samples = [min(arguments.batch_size, len(images) - step % steps_per_epoch * arguments.batch_size)
                for step in range(len(step_seconds))]
if comm.rank == 0:
    print(json.dumps({"engine": "caffe", "version": caffe.__version__, "ranks": comm.size,
                      "first_step_seconds": first_step_seconds, "step_seconds": step_seconds,
                      "step_samples": step_samples, "last_loss": last_loss}))
