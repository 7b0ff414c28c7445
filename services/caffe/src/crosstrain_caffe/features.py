"""What the engine declares of ``capabilities.FEATURES``."""

from typing import Dict, Tuple

EXACT: Tuple[str, ...] = (
    "layer.convolution2d", "layer.pool2d", "layer.pool.max", "layer.pool.average",
    "layer.pool.average.include_pad", "layer.pool.padding", "layer.pool.ceil", "layer.dense", "layer.relu",
    "layer.flatten", "layer.batch_norm", "layer.local_response_norm", "layer.local_response_norm.within_channel",
    "optimizer.sgd", "optimizer.sgd.momentum", "optimizer.sgd.nesterov", "optimizer.adagrad", "decay.l2",
    "clip.global_norm", "semantics.canonical", "semantics.native", "precision.float32", "device.cpu",
    "device.cuda", "execution.deterministic", "execution.intra_threads", "execution.tf32", "probe",
    "parallel.data", "parallel.mpi", "parallel.native", "parallel.local_batch_norm",
)
#: The two ways in which ranks add their gradients: by MPI, and by Caffe's own NCCL between GPUs.
BY_MPI = "parallel.mpi"
BY_NCCL = "parallel.native"
#: What needs one of them.
PARALLEL: Tuple[str, ...] = ("parallel.data", "parallel.local_batch_norm")
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
_DATA_ONLY = "Caffe splits the batch only"
UNSUPPORTED: Dict[str, str] = {
    "precision.float64": "pycaffe is built for single precision",
    "execution.inter_threads": "Caffe executes layers one after the other",
    "execution.gpu_memory_growth": "Caffe takes GPU memory as it needs it and has no other way",
    "compiler.xla": _ELSEWHERE,
    "compiler.torch.compile": _ELSEWHERE,
    "compiler.theano:fast_run": _ELSEWHERE,
    "compiler.theano:fast_compile": _ELSEWHERE,
    "parallel.tensor": _DATA_ONLY,
    "parallel.pipeline": _DATA_ONLY,
    "parallel.data_tensor": _DATA_ONLY,
    "parallel.data_pipeline": _DATA_ONLY,
    "parallel.tensor_pipeline": _DATA_ONLY,
    "parallel.horovod": "Horovod has no interface to Caffe",
    "parallel.hosts": "the ranks are started on one host",
    "parallel.bucket_mib": "every gradient is added in its own memory",
    "parallel.batch_norm": "Caffe's layer normalises over its rank's share",
    "execution.accumulation": "not offered by this engine",
    "precision.mixed_float16": "BVLC Caffe has single precision only",
    "precision.mixed_bfloat16": "BVLC Caffe has single precision only",
}
ON_GPU: Tuple[str, ...] = ("device.cuda", "execution.tf32")
