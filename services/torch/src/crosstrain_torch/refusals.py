"""Combinations that the engine refuses though each part of them works. Imports no framework."""

from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.training import Execution, Training

from .partition import stages


def refusal(engine: str, model: Model, training: Training, execution: Execution) -> str:
    """Why a run cannot be started, or an empty text."""
    parallel = execution.parallel
    norms = bool(model.layers_of(BatchNorm))
    if norms and execution.accumulation_steps > 1 and not execution.native:
        return "batch normalisation over a whole batch cannot be computed from parts of it (accumulation_steps)"
    if parallel.ranks == 1:
        return ""
    if parallel.local_batch_norm and not execution.native:
        return "local_batch_norm is not the canonical function; it needs native semantics"
    if execution.compiler:
        return "%s with several ranks" % execution.compiler
    if norms and execution.native and parallel.data > 1 and not parallel.local_batch_norm:
        if execution.device == "cpu":
            return ("PyTorch's synchronised batch normalisation works on GPUs only: use canonical semantics or "
                    "local_batch_norm")
        if parallel.backend != "native":
            return "native batch normalisation over all ranks needs the native backend"
    if parallel.backend == "horovod" and parallel.tensor * parallel.pipeline > 1:
        return "the backend horovod is for data parallel ranks only"
    if execution.precision == "mixed_float16" and parallel.tensor * parallel.pipeline > 1:
        return "loss scaling of float16 over tensor or pipeline ranks; use mixed_bfloat16"
    return _pipeline(model, execution) if parallel.pipeline > 1 else ""


def _pipeline(model: Model, execution: Execution) -> str:
    count = execution.parallel.pipeline
    if stages(model, count) is None:
        return "a pipeline of %d ranks needs as many layers with parameters" % count
    if execution.accumulation_steps > 1:
        return "accumulation_steps in a pipeline, which has micro_batches for that"
    if model.layers_of(BatchNorm):
        return "batch normalisation in a pipeline, where micro-batches pass one after the other"
    return ""
