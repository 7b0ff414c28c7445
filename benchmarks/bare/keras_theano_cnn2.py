"""cnn2 by ``model.fit`` of Keras 2.3.1 on Theano, as a user writes it without Crosstrain: the yardstick for its
overhead.

Two 3x3 convolutions (32, 64) with ReLU and 2x2 max-pool, dense 128 with ReLU, dense 10; SGD 0.05 with momentum
0.9. Prints one JSON line: ``step_seconds`` (a step includes fetching its batch and reading its loss),
``first_step_seconds`` (from the start of the process to the end of the first step), ``step_samples`` and the last loss.

Theano's own ReLU has gradient 0.5 at 0, its pooling sends the gradient to every tied maximum, and Keras clips
probabilities in the loss, so this is not the function that other frameworks train. ``--canonical-ops`` replaces all
three by the operations that Crosstrain's canonical semantics need, written out here, so that like is compared with
like. Compiled modules are kept in the user's compile directory (``~/.theano``), so only the first run on a machine
pays for them.

    python keras_theano_cnn2.py train.npz --steps 200 --threads 1 --canonical-ops
"""

import argparse
import glob
import json
import os
import sys
import time


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
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--threads", type=int, default=0, help="threads of an operation; 0: all cores")
parser.add_argument("--canonical-ops", action="store_true", help="ReLU, pooling and loss as in other frameworks")
arguments = parser.parse_args()

threads = arguments.threads or os.cpu_count() or 1
os.environ.update(OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads), KERAS_BACKEND="theano")
flags = "device=cpu,floatX=float32,openmp=%s,blas.ldflags=%s" % (threads > 1, blas_flags())
os.environ.setdefault("THEANO_FLAGS", flags)
import keras  # noqa: E402
import numpy as np  # noqa: E402
import theano  # noqa: E402
import theano.tensor as T  # noqa: E402

keras.backend.set_image_data_format("channels_first")


def load(path):
    """Images (N, channels, height, width) float32 in 0..1 and labels int64."""
    with np.load(path, allow_pickle=False) as file:
        pairs = [("x_train", "y_train"), ("images", "labels"), ("x", "y")]
        images, labels = next((file[x], file[y]) for x, y in pairs if x in file.files)
    scale = 255 if images.dtype == np.uint8 else 1
    images = images[:, None] if images.ndim == 3 else images
    return images.astype(np.float32) / np.float32(scale), labels.astype(np.int64)


def canonical_relu(x):
    """max(x, 0) with gradient 0 at 0."""
    entry = x.type()
    return theano.OpFromGraph(
        [entry], [T.maximum(entry, np.float32(0))], inline=True,
        lop_overrides=lambda inputs, outputs, given: [given[0] * T.cast(inputs[0] > 0, "float32")])(x)


def canonical_pool(x):
    """2x2 max-pool of even sizes whose gradient goes to the first maximum."""
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


def canonical_loss(labels, logits):
    """Cross-entropy from logits, not clipped."""
    shifted = logits - theano.gradient.disconnected_grad(T.max(logits, axis=1, keepdims=True))
    rows = T.arange(logits.shape[0])
    return T.log(T.sum(T.exp(shifted), axis=1)) - shifted[rows, T.cast(T.flatten(labels), "int32")]


class Timer(keras.callbacks.Callback):
    """Times the steps and stops after ``steps`` of them."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.step_seconds = []
        self.first_step_seconds = None
        self.loss = None

    def on_train_begin(self, logs=None):
        self.last = time.perf_counter()

    def on_batch_end(self, batch, logs=None):
        self.loss = float(logs["loss"])
        now = time.perf_counter()
        self.step_seconds.append(now - self.last)
        self.last = now
        if self.first_step_seconds is None:
            self.first_step_seconds = seconds_since_process_start()
        if len(self.step_seconds) == self.steps:
            self.model.stop_training = True


def activation():
    return keras.layers.Activation(canonical_relu if arguments.canonical_ops else "relu")


def pool(size):
    if arguments.canonical_ops:
        return keras.layers.Lambda(canonical_pool, output_shape=size)
    return keras.layers.MaxPooling2D(2)


np.random.seed(0)
images, labels = load(arguments.data)
channels, height, width = images.shape[1:]
model = keras.models.Sequential([
    keras.layers.Conv2D(32, 3, padding="same", input_shape=(channels, height, width)), activation(),
    pool((32, height // 2, width // 2)),
    keras.layers.Conv2D(64, 3, padding="same"), activation(), pool((64, height // 4, width // 4)),
    keras.layers.Flatten(), keras.layers.Dense(128), activation(),
    keras.layers.Dense(arguments.classes, activation=None if arguments.canonical_ops else "softmax"),
])
model.compile(
    optimizer=keras.optimizers.SGD(arguments.learning_rate, momentum=arguments.momentum),
    loss=canonical_loss if arguments.canonical_ops else "sparse_categorical_crossentropy")
timer = Timer(arguments.steps)
epochs = -(-arguments.steps // -(-len(images) // arguments.batch_size))
model.fit(images, labels, batch_size=arguments.batch_size, epochs=epochs, callbacks=[timer], verbose=0)
steps_per_epoch = -(-len(images) // arguments.batch_size)
step_samples = [min(arguments.batch_size, len(images) - step % steps_per_epoch * arguments.batch_size)
                for step in range(len(timer.step_seconds))]
print(json.dumps({"engine": "keras-theano", "version": keras.__version__,
                  "first_step_seconds": timer.first_step_seconds, "step_seconds": timer.step_seconds,
                  "step_samples": step_samples, "last_loss": timer.loss, "canonical_ops": arguments.canonical_ops}))
