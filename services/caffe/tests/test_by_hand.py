"""One layer written by hand and run in plain Caffe, forward and backward: equal to the canonical function.

The engine's canonical semantics are compared with the reference elsewhere; here the reference itself, and the engine
with it, are compared with what Caffe computes for the prototxt that its users write.
"""

import caffe
import numpy as np
import pytest
from oracle import RULES, engine, parameters, single, training, wide

from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service.model import LocalResponseNorm, Pool
from crosstrain_service.testing import make_batches
from crosstrain_service.training import Execution

NET = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 dim: %d dim: %d } } }
layer { name: "y" bottom: "x" top: "y" %s }
"""
LRN = 'type: "LRN" lrn_param { norm_region: WITHIN_CHANNEL local_size: %d alpha: %r beta: %r %s }'
POOL = 'type: "Pooling" pooling_param { pool: %s kernel_size: %d stride: %d pad: %d }'


def within(size, alpha, beta):
    return LocalResponseNorm("layer", size, alpha / size ** 2, beta, 1.0, "within_channel")


def rounded_up(kind, kernel, stride, pad):
    return Pool("layer", kind, (kernel,) * 2, (stride,) * 2, (pad,) * 2, (pad,) * 2, "ceil", kind == "average")


# Name: (the layer, its prototxt, size of the input, size of the output where rounding down would give another)
CASES = {
    "lrn_within_3": (within(3, 0.9, 0.75), LRN % (3, 0.9, 0.75, ""), (6, 5), None),
    "lrn_within_5_wider_than_the_input": (within(5, 2.5, 0.5), LRN % (5, 2.5, 0.5, ""), (4, 3), None),
    "lrn_within_line": (within(3, 1.8, 0.75), LRN % (3, 1.8, 0.75, ""), (1, 9), None),
    # Caffe adds 1 all the same.
    "lrn_within_with_k": (within(3, 0.9, 0.75), LRN % (3, 0.9, 0.75, "k: 2"), (6, 5), None),
    "max": (rounded_up("max", 2, 2, 0), POOL % ("MAX", 2, 2, 0), (7, 5), (4, 3)),
    "max_overlapping": (rounded_up("max", 3, 2, 0), POOL % ("MAX", 3, 2, 0), (8, 6), (4, 3)),
    "max_padded": (rounded_up("max", 3, 2, 1), POOL % ("MAX", 3, 2, 1), (8, 6), (5, 4)),
    # Rounding up gives a fourth window that starts in the padding at the end; it is dropped.
    "max_padded_dropped": (rounded_up("max", 2, 2, 1), POOL % ("MAX", 2, 2, 1), (5, 3), None),
    "max_padded_far": (rounded_up("max", 5, 3, 2), POOL % ("MAX", 5, 3, 2), (9, 6), (4, 3)),
    "average": (rounded_up("average", 2, 2, 0), POOL % ("AVE", 2, 2, 0), (7, 5), (4, 3)),
    "average_overlapping": (rounded_up("average", 3, 2, 0), POOL % ("AVE", 3, 2, 0), (8, 6), (4, 3)),
    "average_padded": (rounded_up("average", 3, 2, 1), POOL % ("AVE", 3, 2, 1), (8, 6), (5, 4)),
    "average_padded_dropped": (rounded_up("average", 2, 2, 1), POOL % ("AVE", 2, 2, 1), (5, 3), None),
    "average_padded_far": (rounded_up("average", 5, 3, 2), POOL % ("AVE", 5, 3, 2), (9, 6), (4, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_layer(name, tmp_path):
    layer, text, size, rounded = CASES[name]
    path = tmp_path / "net.prototxt"
    path.write_text(NET % (size + (text,)))
    net = caffe.Net(str(path), caffe.TRAIN)
    if rounded is not None:
        assert tuple(net.blobs["y"].shape)[2:] == rounded
        floor = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(size, layer.pad_begin, layer.kernel, layer.stride)]
        assert tuple(floor) != rounded
    model = single(layer, input_shape=(2,) + size)
    batch = make_batches(model, 1, 4)[0]
    built, exact = engine(model, training(RULES["sgd"])), ReferenceEngine(
        model, training(RULES["sgd"]), Execution(precision="float64"))
    exact.load_parameters({key: value.astype(np.float64) for key, value in parameters(model).items()})
    for found, tolerance in ((built.intermediates(batch), 0.0), (exact.intermediates(wide(batch)), 1e-6)):
        net.blobs["x"].data[...] = found.outputs["first"]
        net.forward()
        net.blobs["y"].diff[...] = found.output_gradients["layer"]
        net.backward()
        for value, expected in ((found.outputs["layer"], net.blobs["y"].data),
                                (found.output_gradients["first"], net.blobs["x"].diff)):
            assert value.shape == expected.shape
            np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance * np.abs(expected).max())
