"""cnn2 in Keras 2 on several processes (``fit`` with Horovod's optimizer), as a user writes it without Crosstrain.

Two 3x3 convolutions (32, 64) with ReLU and 2x2 max-pool, dense 128 with ReLU, dense 10; SGD 0.05 with momentum
0.9. Every process trains on its share of the images; what does not fill a batch is left out. Process 0 prints one
JSON line: ``step_seconds`` (a step includes fetching its batch and reading its loss), ``first_step_seconds`` (from the
start of the process to the end of the first step), ``step_samples`` and the last loss, its own.

    horovodrun -np 2 --gloo python keras_tensorflow_horovod_cnn2.py train.npz --steps 200 --threads 1
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
parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--threads", type=int, default=0, help="threads within an operation; 0: TensorFlow's default")
parser.add_argument("--deterministic", action="store_true", help="allow deterministic kernels only")
arguments = parser.parse_args()

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
import horovod.tensorflow.keras as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow import keras  # noqa: E402

hvd.init()
if arguments.threads:
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
if arguments.deterministic:
    tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(0)


def load(path):
    """Images (N, height, width, channels) float32 in 0..1 and labels int64."""
    with np.load(path, allow_pickle=False) as file:
        pairs = [("x_train", "y_train"), ("images", "labels"), ("x", "y")]
        images, labels = next((file[x], file[y]) for x, y in pairs if x in file.files)
    scale = 255 if images.dtype == np.uint8 else 1
    images = images[..., None] if images.ndim == 3 else images.transpose(0, 2, 3, 1)
    images = np.ascontiguousarray(images, dtype=np.float32) / np.float32(scale)
    return images, labels.astype(np.int64)


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

    def on_train_batch_end(self, batch, logs=None):
        self.loss = float(logs["loss"])
        now = time.perf_counter()
        self.step_seconds.append(now - self.last)
        self.last = now
        if self.first_step_seconds is None:
            self.first_step_seconds = seconds_since_process_start()
        if len(self.step_seconds) == self.steps:
            self.model.stop_training = True


images, labels = load(arguments.data)
model = keras.Sequential([
    keras.layers.Input(images.shape[1:]),
    keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
    keras.layers.MaxPooling2D(2),
    keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
    keras.layers.MaxPooling2D(2),
    keras.layers.Flatten(),
    keras.layers.Dense(128, activation="relu"),
    keras.layers.Dense(arguments.classes),
])
model.compile(
    optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(arguments.learning_rate, momentum=arguments.momentum)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
share = arguments.batch_size // hvd.size()
count = len(images) // arguments.batch_size * share
rows = slice(hvd.rank(), hvd.rank() + hvd.size() * count, hvd.size())
timer = Timer(arguments.steps)
epochs = -(-arguments.steps // (count // share))
model.fit(images[rows], labels[rows], batch_size=share, epochs=epochs, verbose=0,
          callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), timer])
if hvd.rank() == 0:
    print(json.dumps({"engine": "keras-tensorflow", "version": keras.__version__, "ranks": hvd.size(),
                      "first_step_seconds": timer.first_step_seconds, "step_seconds": timer.step_seconds,
                      "step_samples": [arguments.batch_size] * len(timer.step_seconds), "last_loss": timer.loss}))
