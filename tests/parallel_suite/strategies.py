"""The ways of spreading training over ranks that the suite tries, and which of them an engine declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from crosstrain_service import capabilities
from crosstrain_service.capabilities import UNSUPPORTED, Feature
from crosstrain_service.training import Execution, Parallel

#: One rank: what the others are compared with.
ALONE = Execution(intra_threads=1)
BACKENDS = ("native", "horovod", "mpi")
HALVES = ("mixed_bfloat16", "mixed_float16")
_SIZES = (2, 3, 4)


@dataclass(frozen=True)
class Strategy:
    """One way, and what it is called."""

    title: str
    execution: Execution

    @property
    def precision(self) -> str:
        """The precision that its runs are judged in."""
        return self.execution.precision or "float32"

    @property
    def alone(self) -> Strategy:
        """One rank in the same precision."""
        if self.precision == "float32":
            return Strategy("1 rank", ALONE)
        return Strategy(f"1 rank, {self.precision}", dataclasses.replace(ALONE, precision=self.precision))

    @property
    def plain(self) -> bool:
        """Whether it is nothing but two ranks, or two ranks' worth of parts."""
        parts = self.ranks * self.execution.accumulation_steps
        return parts == 2 and not self.execution.parallel.micro_batches and self.precision == "float32"

    def is_data(self, ranks: int = 0) -> bool:
        """Whether it is data parallel and nothing else, on so many ranks if a number is given."""
        if self.ranks == 1 or self.execution.parallel.data != self.ranks or self.execution.accumulation_steps > 1:
            return False
        return ranks in (0, self.ranks)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.execution.parallel.ranks

    def missing(self, declared: Mapping[str, Feature]) -> str:
        """What an engine lacks for it, with the engine's own words; empty if nothing."""
        return missing(capabilities.features_of_execution(self.execution), declared)


def missing(needed: set[str], declared: Mapping[str, Feature]) -> str:
    """Features of ``needed`` that an engine does not declare; empty if none."""
    lacking = []
    for name in sorted(needed):
        feature = declared.get(name, Feature(UNSUPPORTED))
        if feature.support == UNSUPPORTED:
            lacking.append(f"{name} ({feature.note})" if feature.note else name)
    return "; ".join(lacking)


def strategies() -> Iterator[Strategy]:
    """All of them: those that an engine does not declare are listed as such."""
    for backend in BACKENDS:
        for size in _SIZES:
            yield _strategy(f"data {size}, {backend}", data=size, backend=backend)
    yield _strategy("tensor 2", tensor=2)
    yield _strategy("pipeline 2", pipeline=2)
    yield _strategy("pipeline 2, 4 micro-batches", pipeline=2, micro_batches=4)
    yield _strategy("data 2 x tensor 2", data=2, tensor=2)
    yield _strategy("data 2 x pipeline 2", data=2, pipeline=2)
    yield _strategy("tensor 2 x pipeline 2", tensor=2, pipeline=2)
    yield _strategy("accumulation 2", accumulation=2)
    for backend in BACKENDS:
        yield _strategy(f"data 2, {backend}, accumulation 2", accumulation=2, data=2, backend=backend)
    for half in HALVES:
        found = _strategy("", data=2, backend="native")
        yield Strategy(f"data 2, native, {half}", dataclasses.replace(found.execution, precision=half))


def _strategy(title: str, *, accumulation: int = 1, **settings: int | str) -> Strategy:
    parallel = Parallel(**settings)  # type: ignore[arg-type]
    return Strategy(title, dataclasses.replace(ALONE, parallel=parallel, accumulation_steps=accumulation))
