"""Combinations that the engine refuses though each part of them works. Imports no framework."""

from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.training import Execution, Training


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
    return ""
