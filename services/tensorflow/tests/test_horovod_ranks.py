"""How gradients are put together for Horovod; training over its processes is in the parallel suite."""

import pytest
import tensorflow as tf

from crosstrain_tensorflow.horovod_ranks import buckets

# 40, 400, 4, 400 and 4 bytes. No tensors: they would start TensorFlow before an engine has set its threads.
GRADIENTS = [tf.TensorSpec(shape, tf.float32) for shape in ((10,), (10, 10), (1,), (4, 25), ())]


@pytest.mark.parametrize(("limit", "expected"), [
    (1 << 20, [[4, 3, 2, 1, 0]]),
    (848, [[4, 3, 2, 1, 0]]),
    (847, [[4, 3, 2, 1], [0]]),
    (404, [[4, 3], [2, 1], [0]]),
    (1, [[4], [3], [2], [1], [0]]),
])
def test_buckets_hold_no_more_than_the_limit_unless_one_gradient_does(limit, expected):
    assert buckets(GRADIENTS, limit) == expected


def test_a_bucket_has_one_type():
    values = [tf.TensorSpec(1, kind) for kind in (tf.float32, tf.float64, tf.float64)]
    assert buckets(values, 1 << 20) == [[2, 1], [0]]


def test_nothing_to_add_needs_no_bucket():
    assert buckets([], 1) == []
