"""What the ranks of a run did, step by step and over all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosstrain_protos.v1 import run_pb2, training_pb2

#: Times of a rank's step with their types, as they are kept and written.
RANK_COLUMNS: dict[str, str] = {
    "step_seconds": "float64",
    "data_seconds": "float64",
    "compute_seconds": "float64",
    "sync_seconds": "float64",
    "samples": "int32",
}
#: Share of a step beyond which waiting for other ranks is worth a hint.
MUCH_SYNCHRONISATION = 0.2
HINT = "small model: a larger batch or fewer ranks"


@dataclass
class RankSteps:
    """Columns of all ranks for some steps: ``step`` (steps,), and each of RANK_COLUMNS (ranks, steps)."""

    step: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.columns["step_seconds"].shape[0])

    def before(self, step: int) -> RankSteps:
        """The steps with a smaller number."""
        kept = self.step < step
        return RankSteps(self.step[kept], {name: values[:, kept] for name, values in self.columns.items()})


def rank_steps(records: run_pb2.StepRecords) -> RankSteps | None:
    """The ranks' columns of a message; None with one rank. A column of another length counts as zero."""
    count = len(records.loss)
    if not count or not records.ranks:
        return None
    columns = {}
    for name, kind in RANK_COLUMNS.items():
        table = np.zeros((len(records.ranks), count), dtype=kind)
        for rank, times in enumerate(records.ranks):
            values = getattr(times, name)
            if len(values) == count:
                table[rank] = values
        columns[name] = table
    return RankSteps(np.arange(records.first_step, records.first_step + count), columns)


@dataclass(frozen=True)
class RankSummary:
    """Means over a rank's steps, the first step left out: it holds what is only done once. Seconds and samples."""

    rank: int
    steps: int
    step_seconds: float
    data_seconds: float
    compute_seconds: float
    sync_seconds: float
    samples: float


@dataclass(frozen=True)
class Spreading:
    """How a run was spread, and what that cost.

    ``batch_size`` is that of all ranks together, ``share`` the most samples of a batch that one data rank has.
    ``imbalance`` is the largest over the mean computing time of the ranks, ``sync_share`` the share of a step spent
    waiting for other ranks, None where nothing was recorded. ``reduced_bytes`` is what one rank hands to collective
    operations per step, ``parameter_bytes`` the size M of all parameters, ``ring_bytes`` = 2 (K - 1) / K * M what a
    ring all-reduce of the gradients sends per rank with K data ranks.
    """

    ranks: int
    data: int
    tensor: int
    pipeline: int
    backend: str
    batch_size: int
    share: int
    parameter_bytes: int
    ring_bytes: float
    reduced_bytes: float | None = None
    imbalance: float | None = None
    sync_share: float | None = None
    hint: str = ""
    lost: int = 0
    each: tuple[RankSummary, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "each": [vars(item) for item in self.each]}


def spreading(
    parallel: training_pb2.Parallel,
    steps: list[RankSteps],
    result: run_pb2.TrainResult | None,
    batch_size: int,
    parameter_bytes: int,
    lost: int = 0,
) -> Spreading:
    """What is known of a run on several ranks.

    After a rank was lost for good, ``each`` tells of the ranks that were there at the end.
    """
    data, tensor, pipeline = (max(1, getattr(parallel, name)) for name in ("data", "tensor", "pipeline"))
    each: tuple[RankSummary, ...] = ()
    imbalance = sync_share = None
    kept = [block for block in steps if block.ranks == steps[-1].ranks]
    if kept:
        table = {name: np.concatenate([block.columns[name] for block in kept], axis=1) for name in RANK_COLUMNS}
        first = 1 if table["samples"].shape[1] > 1 else 0
        table = {name: values[:, first:].astype(np.float64) for name, values in table.items()}
        each = tuple(
            RankSummary(
                rank,
                table["samples"].shape[1],
                *(float(table[name][rank].mean()) for name in RANK_COLUMNS),
            )
            for rank in range(kept[-1].ranks)
        )
        compute = table["compute_seconds"].sum(axis=1)
        imbalance = float(compute.max() / compute.mean()) if compute.mean() > 0 else None
        whole = float(table["step_seconds"].sum())
        sync_share = float(table["sync_seconds"].sum() / whole) if whole > 0 else None
    much = sync_share is not None and sync_share > MUCH_SYNCHRONISATION
    reduced = result is not None and result.HasField("reduced_bytes_per_step")
    return Spreading(
        ranks=data * tensor * pipeline,
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        backend=parallel.backend or "native",
        batch_size=batch_size,
        share=-(-batch_size // data),
        parameter_bytes=parameter_bytes,
        ring_bytes=2 * (data - 1) / data * parameter_bytes,
        reduced_bytes=result.reduced_bytes_per_step if result is not None and reduced else None,
        imbalance=imbalance,
        sync_share=sync_share,
        hint=HINT if much else "",
        lost=lost,
        each=each,
    )
