"""cnn2 in plain TensorFlow with Horovod, as a user writes it without Crosstrain; run by horovodrun.

Two 3x3 convolutions (32, 64) with ReLU and 2x2 max-pool, dense 128 with ReLU, dense 10; SGD 0.05 with momentum
0.9. Prints one JSON line: ``step_seconds`` (a step includes fetching its batch and reading its loss),
``first_step_seconds`` (from the start of the process to the end of the first step), ``step_samples`` and the last loss.

    horovodrun -np 2 --gloo --network-interfaces lo python tensorflow_horovod_cnn2.py train.npz --steps 200 --threads 1
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
import horovod.tensorflow as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

hvd.init()

if arguments.threads:
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
if arguments.deterministic:
    tf.config.experimental.enable_op_determinism()
tf.random.set_seed(0)


def load(path):
    """Images (N, height, width, channels) float32 in 0..1 and labels int64."""
    with np.load(path, allow_pickle=False) as file:
        pairs = [("x_train", "y_train"), ("images", "labels"), ("x", "y")]
        images, labels = next((file[x], file[y]) for x, y in pairs if x in file.files)
    scale = 255 if images.dtype == np.uint8 else 1
    images = images[..., None] if images.ndim == 3 else images.transpose(0, 2, 3, 1)
    images = np.ascontiguousarray(images, dtype=np.float32) / np.float32(scale)
    return images, labels.astype(np.int64)


class Cnn2(tf.Module):
    def __init__(self, height, width, channels):
        super().__init__()
        glorot = tf.random.stateless_uniform

        def weight(*shape):
            fans = np.prod(shape[:-2]) * (shape[-2] + shape[-1])
            limit = float(np.sqrt(6 / fans))
            return tf.Variable(glorot(shape, seed=[0, len(shape) + shape[-1]], minval=-limit, maxval=limit))

        self.conv1, self.conv1_bias = weight(3, 3, channels, 32), tf.Variable(tf.zeros(32))
        self.conv2, self.conv2_bias = weight(3, 3, 32, 64), tf.Variable(tf.zeros(64))
        self.dense1, self.dense1_bias = weight(height // 4 * (width // 4) * 64, 128), tf.Variable(tf.zeros(128))
        self.dense2, self.dense2_bias = weight(128, arguments.classes), tf.Variable(tf.zeros(arguments.classes))

    def __call__(self, x):
        x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, self.conv1, 1, "SAME"), self.conv1_bias))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, self.conv2, 1, "SAME"), self.conv2_bias))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.reshape(x, (-1, self.dense1.shape[0]))
        x = tf.nn.relu(tf.matmul(x, self.dense1) + self.dense1_bias)
        return tf.matmul(x, self.dense2) + self.dense2_bias


images, labels = load(arguments.data)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shard(hvd.size(), hvd.rank())
dataset = dataset.shuffle(len(images), seed=0).batch(arguments.batch_size // hvd.size(), drop_remainder=True)
dataset = dataset.repeat().prefetch(1)
model = Cnn2(*images.shape[1:])
optimizer = tf.keras.optimizers.SGD(arguments.learning_rate, momentum=arguments.momentum)
optimizer.build(model.trainable_variables)
hvd.broadcast_variables(model.variables, root_rank=0)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x)))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


step_seconds = []
first_step_seconds = None
last = time.perf_counter()
for x, y in dataset.take(arguments.steps):
    loss = float(train_step(x, y))
    now = time.perf_counter()
    step_seconds.append(now - last)
    last = now
    if first_step_seconds is None:
        first_step_seconds = seconds_since_process_start()
step_samples = [arguments.batch_size] * len(step_seconds)
if hvd.rank() == 0:
    print(json.dumps({"engine": "tensorflow", "version": tf.__version__, "ranks": hvd.size(),
                      "first_step_seconds": first_step_seconds, "step_seconds": step_seconds,
                      "step_samples": step_samples, "last_loss": loss}))
