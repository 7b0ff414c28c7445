"""cnn2 in plain Lasagne on several ranks by MPI, as a user writes it: the yardstick for the overhead of Crosstrain.

Two 3x3 convolutions (32, 64) with ReLU and 2x2 max-pool, dense 128 with ReLU, dense 10; SGD 0.05 with momentum 0.9.
Every rank computes its share of a batch, and an operation of Theano's graph adds the gradients of all. Rank 0 prints
one JSON line: ``step_seconds`` (a step includes fetching its batch and reading its loss), ``first_step_seconds`` (from
the start of the process to the end of the first step), ``step_samples`` and the last
loss. ``--canonical-ops``: see lasagne_cnn2.py.
Compiled modules are kept below ``~/.theano``, in a folder for every rank.

    mpiexec.gforker -n 2 python lasagne_mpi_cnn2.py train.npz --steps 200 --threads 1 --canonical-ops
"""

import argparse
import glob
import json
import os
import sys
import time
import types


def seconds_since_process_start():
    """Age of this process in seconds (Linux)."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def blas_flags():
    """The OpenBLAS of SciPy's wheel, which Theano does not find by itself."""
    found = glob.glob(os.path.join(sys.prefix, "lib", "python*", "site-packages", "scipy.libs", "libopenblas*.so*"))
    return "-L%s -l:%s" % os.path.split(found[0]) if found else ""


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("data", help="npz file with images (N, [channels,] height, width) and labels")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch-size", type=int, default=64, help="samples of a batch, all ranks together")
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--threads", type=int, default=0, help="threads of an operation; 0: all cores")
parser.add_argument("--canonical-ops", action="store_true",
                    help="ReLU and pooling with the gradients of other frameworks")
arguments = parser.parse_args()

threads = arguments.threads or os.cpu_count() or 1
os.environ.update(OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
# Shared memory only, and a rank that waits lets others work.
os.environ.setdefault("UCX_TLS", "self,sm")
os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "10")
os.environ.setdefault("MPIR_CVAR_POSIX_POLL_FREQUENCY", "10")
from mpi4py import MPI  # noqa: E402

comm = MPI.COMM_WORLD
# A compile directory for every rank: in a shared one they would wait for its lock.
folder = os.path.join(os.path.expanduser("~"), ".theano", "rank%d" % comm.rank)
flags = "device=cpu,floatX=float32,openmp=%s,blas.ldflags=%s,base_compiledir=%s" % (threads > 1, blas_flags(), folder)
os.environ.setdefault("THEANO_FLAGS", flags)
import numpy as np  # noqa: E402
import theano  # noqa: E402
import theano.tensor as T  # noqa: E402
from theano.tensor.signal.pool import pool_2d  # noqa: E402

# Lasagne 0.1 imports a module that Theano 0.9 removed.
downsample = types.ModuleType("theano.tensor.signal.downsample")
downsample.max_pool_2d = lambda input, ds, ignore_border=None, st=None, padding=(0, 0), mode="max": pool_2d(
    input, ws=ds, ignore_border=ignore_border, stride=st, pad=padding, mode=mode)
sys.modules["theano.tensor.signal.downsample"] = theano.tensor.signal.downsample = downsample
import lasagne  # noqa: E402
from lasagne import layers, nonlinearities  # noqa: E402


def load(path):
    """Images (N, channels, height, width) float32 in 0..1 and labels int32."""
    with np.load(path, allow_pickle=False) as file:
        pairs = [("x_train", "y_train"), ("images", "labels"), ("x", "y")]
        images, labels = next((file[x], file[y]) for x, y in pairs if x in file.files)
    scale = 255 if images.dtype == np.uint8 else 1
    images = images[:, None] if images.ndim == 3 else images
    return images.astype(np.float32) / np.float32(scale), labels.astype(np.int32)


def batches(images, labels, size):
    """This rank's shares of shuffled batches for ever, the last one of an epoch smaller, and their parts of it."""
    while True:
        order = np.random.permutation(len(images))
        for start in range(0, len(order), size):
            rows = order[start:start + size]
            share = np.array_split(rows, comm.size)[comm.rank]
            weight = len(share) / len(rows)
            share = share if len(share) else rows[:1]
            yield images[share], labels[share], weight


class AddOverRanks(theano.Op):
    """The sums over all ranks of some tensors, in one collective call."""

    __props__ = ()

    def make_node(self, *tensors):
        tensors = [T.as_tensor_variable(tensor) for tensor in tensors]
        return theano.Apply(self, tensors, [tensor.type() for tensor in tensors])

    def perform(self, node, inputs, outputs, params=None):
        flat = np.concatenate([tensor.ravel() for tensor in inputs])
        comm.Allreduce(MPI.IN_PLACE, flat)
        start = 0
        for tensor, output in zip(inputs, outputs):
            output[0] = flat[start:start + tensor.size].reshape(tensor.shape)
            start += tensor.size

    def infer_shape(self, node, shapes):
        return shapes


def whole_gradients(loss, parameters):
    """Gradients of the mean loss over the whole batch, from that over this rank's share."""
    return AddOverRanks()(*T.grad(loss * part, parameters))


def canonical_relu(x):
    """max(x, 0) with gradient 0 at 0."""
    entry = x.type()
    return theano.OpFromGraph(
        [entry], [T.maximum(entry, np.float32(0))], inline=True,
        lop_overrides=lambda inputs, outputs, given: [given[0] * T.cast(inputs[0] > 0, "float32")])(x)


def canonical_pool(x):
    """2x2 max-pool whose gradient goes to the first maximum."""
    entry = x.type()
    places = [np.s_[:, :, row::2, column::2] for row in (0, 1) for column in (0, 1)]

    def gradient(inputs, outputs, given):
        result, free = T.zeros_like(inputs[0]), None
        for place in places:
            equal, other = T.eq(inputs[0][place], outputs[0]), T.neq(inputs[0][place], outputs[0])
            chosen = equal if free is None else T.and_(free, equal)
            result = T.set_subtensor(result[place], given[0] * T.cast(chosen, "float32"))
            free = other if free is None else T.and_(free, other)
        return [result]

    first, second, third, fourth = [entry[place] for place in places]
    largest = T.maximum(T.maximum(first, second), T.maximum(third, fourth))
    return theano.OpFromGraph([entry], [largest], inline=True, lop_overrides=gradient)(x)


class CanonicalPool(layers.Layer):
    """2x2 max-pool of even sizes."""

    def get_output_shape_for(self, input_shape):
        return input_shape[:2] + (input_shape[2] // 2, input_shape[3] // 2)

    def get_output_for(self, input, **kwargs):
        return canonical_pool(input)


def pool(incoming):
    return CanonicalPool(incoming) if arguments.canonical_ops else layers.MaxPool2DLayer(incoming, 2)


np.random.seed(0)
images, labels = load(arguments.data)
relu = canonical_relu if arguments.canonical_ops else nonlinearities.rectify
x, y, part = T.tensor4("x"), T.ivector("y"), T.fscalar("part")
network = layers.InputLayer((None,) + images.shape[1:], x)
network = pool(layers.Conv2DLayer(network, 32, 3, pad=1, nonlinearity=relu))
network = pool(layers.Conv2DLayer(network, 64, 3, pad=1, nonlinearity=relu))
network = layers.DenseLayer(network, 128, nonlinearity=relu)
network = layers.DenseLayer(network, arguments.classes, nonlinearity=nonlinearities.softmax)
loss = lasagne.objectives.categorical_crossentropy(layers.get_output(network), y).mean()
parameters = layers.get_all_params(network, trainable=True)
gradients = whole_gradients(loss, parameters)
updates = lasagne.updates.momentum(gradients, parameters,
                                    learning_rate=arguments.learning_rate, momentum=arguments.momentum)
step = theano.function([x, y, part], loss, updates=updates, allow_input_downcast=True)

step_seconds = []
first_step_seconds = None
source = batches(images, labels, arguments.batch_size)
for _ in range(arguments.steps):
    start = time.perf_counter()
    share = next(source)
    last_loss = float(step(*share))
    step_seconds.append(time.perf_counter() - start)
    if first_step_seconds is None:
        first_step_seconds = seconds_since_process_start()

last_loss = comm.allreduce(last_loss * share[2])
steps_per_epoch = -(-len(images) // arguments.batch_size)
step_samples = [min(arguments.batch_size, len(images) - step % steps_per_epoch * arguments.batch_size)
                for step in range(len(step_seconds))]
if comm.rank == 0:
    print(json.dumps({
        "engine": "lasagne", "version": lasagne.__version__, "ranks": comm.size,
        "first_step_seconds": first_step_seconds, "step_seconds": step_seconds,
        "step_samples": step_samples, "last_loss": last_loss, "canonical_ops": arguments.canonical_ops}))
