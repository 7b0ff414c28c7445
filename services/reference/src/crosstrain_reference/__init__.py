"""Reference arithmetic for training convolutional networks, in NumPy alone.

Every other engine is compared with what this package computes, so it favours plain formulas over speed and
depends on no framework.  Conventions, everywhere in the package:

* activations are ``(N, C, L)`` or ``(N, C, H, W)``; kernels are ``(O, I, L)`` or ``(O, I, H, W)`` and applied
  as cross-correlation; dense weights are ``(out, in)``; flattening keeps the order C, H, W;
* a function computes in the floating type of its inputs and refuses inputs of different types;
* no function modifies its arguments.
"""

from typing import Any, Dict

from .layers import (
    LRN,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Layer,
    Pad,
    Pool,
    Relu,
    Trace,
)
from .losses import (
    accuracy_count,
    cross_entropy,
    cross_entropy_gradient,
    cross_entropy_per_sample,
    softmax,
)
from .network import Backward, Forward, LossAndGradients, Network, decision_flips
from .optimizers import Optimizer, clip_by_global_norm, global_norm

#: The engine over this library, for a training service (see crosstrain_service.engine).
ENGINES = {"reference": "crosstrain_reference.engine:ReferenceEngine"}


def environment(engine: str, execution: Any, run_dir: str) -> Dict[str, str]:
    """Variables that NumPy's BLAS reads when it is loaded."""
    threads = str(execution.intra_threads)
    return {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


__all__ = [
    "ENGINES",
    "LRN",
    "Backward",
    "BatchNorm",
    "Convolution",
    "Dense",
    "Dropout",
    "Flatten",
    "Forward",
    "Layer",
    "LossAndGradients",
    "Network",
    "Optimizer",
    "Pad",
    "Pool",
    "Relu",
    "Trace",
    "accuracy_count",
    "clip_by_global_norm",
    "cross_entropy",
    "cross_entropy_gradient",
    "cross_entropy_per_sample",
    "decision_flips",
    "environment",
    "global_norm",
    "softmax",
]
