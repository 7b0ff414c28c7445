"""What the engine declares of ``capabilities.FEATURES``."""

from typing import Dict, Tuple

EXACT: Tuple[str, ...] = (
    "layer.convolution2d", "layer.pool2d", "layer.pool.max", "layer.pool.average",
    "layer.pool.average.include_pad", "layer.pool.padding", "layer.pool.ceil", "layer.dense", "layer.relu",
    "layer.flatten", "layer.batch_norm", "layer.local_response_norm", "layer.local_response_norm.within_channel",
    "optimizer.sgd", "optimizer.sgd.momentum", "optimizer.sgd.nesterov", "optimizer.adagrad", "decay.l2",
    "clip.global_norm", "semantics.canonical", "semantics.native", "precision.float32", "device.cpu",
    "device.cuda", "execution.deterministic", "execution.intra_threads", "execution.tf32", "probe",
)
_UNITS = "Caffe's solver; rate and delta carry the rounding of 1 - beta, which Caffe forms from a float32"
EMULATED: Dict[str, str] = {
    "layer.convolution1d": "computed in two dimensions with height 1",
    "layer.convolution.asymmetric_padding": "a concatenation with constant inputs before the convolution",
    "layer.pool1d": "computed in two dimensions with height 1",
    "layer.pool.average.exclude_pad": "Caffe counts the padding; a constant factor corrects it",
    "layer.pool.asymmetric_padding": "a concatenation with constant inputs; averages corrected by a factor",
    "layer.pad": "a concatenation with constant inputs",
    "layer.dropout": "the mask is an input that is multiplied in; native semantics draw their own",
    "optimizer.rmsprop": _UNITS,
    "optimizer.adadelta": _UNITS,
    "optimizer.adam": _UNITS + "; delta follows the correction of epsilon hat",
    "decay.decoupled": "the weights are multiplied between backward pass and update",
    "execution.nondeterministic": "Caffe has no such switch on a CPU: it is deterministic all the same",
}
_ELSEWHERE = "belongs to another framework"
_ONE_DEVICE = "this engine trains on one device"
UNSUPPORTED: Dict[str, str] = {
    "precision.float64": "pycaffe is built for single precision",
    "execution.inter_threads": "Caffe executes layers one after the other",
    "execution.gpu_memory_growth": "Caffe takes GPU memory as it needs it and has no other way",
    "compiler.xla": _ELSEWHERE,
    "compiler.torch.compile": _ELSEWHERE,
    "compiler.theano:fast_run": _ELSEWHERE,
    "compiler.theano:fast_compile": _ELSEWHERE,
    "parallel.data": _ONE_DEVICE,
    "parallel.tensor": _ONE_DEVICE,
    "parallel.pipeline": _ONE_DEVICE,
}
ON_GPU: Tuple[str, ...] = ("device.cuda", "execution.tf32")
