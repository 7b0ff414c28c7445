"""How training is spread over ranks, and entries of ``engines`` that change it: ``torch[data=2]``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from crosstrain_service.parallel.shares import share_sizes
from crosstrain_service.training import STALL_SECONDS

from .base import ENGINE_PATTERN, MAX_RANKS, WRONG, Part, wrong

RankCount = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Backend = Literal["auto", "native", "horovod", "mpi"]
#: Backends in the order in which ``auto`` chooses among those that an engine declares.
BACKENDS = ("native", "mpi", "horovod")


class ParallelSpec(Part):
    """``data`` x ``tensor`` x ``pipeline`` ranks, which compute what one would.

    ``backend`` carries the communication; ``auto`` is what the engine has: the framework's own, else MPI, else
    Horovod. ``micro_batches`` of a pipeline are as many as stages if 0; ``bucket_mib`` is the framework's default
    if 0. ``local_batch_norm`` (native semantics): statistics of each rank's share instead of the whole batch.
    ``on_rank_loss`` says what becomes of a run that loses a rank, ``min_data`` with how few data ranks it may
    go on (``shrink``). Ranks that all live but do not go on for ``stall_seconds`` are given up (0: never).
    ``hosts`` services of the engine share the ranks.
    """

    data: RankCount = 1
    tensor: RankCount = 1
    pipeline: RankCount = 1
    backend: Backend = "auto"
    micro_batches: Annotated[int, Field(ge=0, le=4096)] = 0
    bucket_mib: Annotated[int, Field(ge=0, le=4096)] = 0
    local_batch_norm: bool = False
    on_rank_loss: Literal["restart", "shrink", "fail"] = "restart"
    min_data: RankCount = 1
    stall_seconds: Annotated[int, Field(ge=0, le=1_000_000)] = STALL_SECONDS
    hosts: RankCount = 1

    @model_validator(mode="after")
    def _consistent(self) -> ParallelSpec:
        if self.ranks > MAX_RANKS:
            sizes = f"{self.data} x {self.tensor} x {self.pipeline}"
            raise wrong(("parallel",), f"{sizes} are {self.ranks} ranks; at most {MAX_RANKS} are possible")
        if self.micro_batches and self.pipeline == 1:
            text = f"{self.micro_batches} without a pipeline; remove it, or give pipeline"
            raise wrong(("parallel", "micro_batches"), text)
        if self.min_data > 1 and self.on_rank_loss != "shrink":
            raise wrong(("parallel", "min_data"), f"{self.min_data} only means something with on_rank_loss: shrink")
        return self

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.data * self.tensor * self.pipeline

    def ranks_of_hosts(self) -> list[int]:
        """Ranks of each host, in order of ranks.

        They are near-equal in what is not torn apart: the ranks of one data share, if there are as many shares as
        hosts, else those of one stage of a pipeline, else single ranks.
        """
        width = self.tensor * self.pipeline
        unit = next(size for size in (width, self.tensor, 1) if self.ranks // size >= self.hosts)
        return [size * unit for size in share_sizes(self.ranks // unit, self.hosts)]

    def with_settings(self, settings: dict[str, Any]) -> ParallelSpec:
        """The same with some settings replaced, checked anew.

        What only means something with the replaced setting follows it: ``micro_batches`` of a pipeline that is gone,
        ``min_data`` above the new number of data ranks, ``hosts`` above the new number of ranks.

        Raises:
            ValueError: a setting has a wrong value, or two contradict each other.
        """
        values = {name: getattr(self, name) for name in type(self).model_fields} | settings
        if "micro_batches" not in settings and values["pipeline"] == 1:
            values["micro_batches"] = 0
        if "min_data" not in settings:
            values["min_data"] = values["min_data"] if values["on_rank_loss"] == "shrink" else 1
            if isinstance(values["data"], int):
                values["min_data"] = max(1, min(values["min_data"], values["data"]))
        counts = [values[name] for name in ("data", "tensor", "pipeline")]
        if "hosts" not in settings and all(isinstance(count, int) for count in counts):
            values["hosts"] = max(1, min(values["hosts"], math.prod(counts)))
        try:
            return ParallelSpec(**values)
        except ValidationError as error:
            raise ValueError("; ".join(_message(item) for item in error.errors(include_url=False))) from None


def _message(detail: Any) -> str:
    if detail["type"] == WRONG:
        path = detail["ctx"]["path"][1:]
        return ": ".join((*path, detail["ctx"]["message"]))
    wanted = str(detail["msg"]).removeprefix("Input should be ")
    return f"{detail['loc'][0]}: must be {wanted}, not {detail['input']!r}"


_ENTRY = re.compile(r"(?P<base>[^\[\]]*)(?:\[(?P<settings>[^\[\]]*)\])?\Z")
_BASE = re.compile(ENGINE_PATTERN)
_INTEGER = re.compile(r"[0-9]{1,9}\Z")
_WORD = re.compile(r"[a-z_]{1,20}\Z")


@dataclass(frozen=True)
class EngineEntry:
    """An entry of ``engines``: ``base`` is ``name`` or ``name@version``, ``settings`` those in brackets."""

    base: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The settings as text, as in ``data=2,backend=horovod``; empty without any."""
        return ",".join(f"{name}={_text(value)}" for name, value in self.settings.items())

    def __str__(self) -> str:
        return f"{self.base}[{self.variant}]" if self.settings else self.base


def parse_entry(text: str) -> EngineEntry:
    """Reads an entry of ``engines``; the settings come out in the order in which ``parallel`` has them.

    Raises:
        ValueError: saying what is wrong and what is allowed.
    """
    match = _ENTRY.match(text)
    if match is None or not _BASE.match(match["base"]):
        raise ValueError(
            "must be an engine: name or name@version in lower case, with settings of 'parallel' in brackets "
            f"where they differ, as in torch[data=2]; not {text[:80]!r}"
        )
    if match["settings"] is None:
        return EngineEntry(match["base"])
    given: dict[str, Any] = {}
    for item in match["settings"].split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not value:
            raise ValueError(f"{text[:80]!r}: settings are written name=value, as in torch[data=2]; not {item!r}")
        if name not in ParallelSpec.model_fields:
            known = ", ".join(ParallelSpec.model_fields)
            raise ValueError(f"{text[:80]!r}: unknown setting {name[:40]!r}; known are {known}")
        if name in given:
            raise ValueError(f"{text[:80]!r}: {name} is given twice")
        given[name] = _value(value, text)
    return EngineEntry(match["base"], {name: given[name] for name in ParallelSpec.model_fields if name in given})


def _value(text: str, entry: str) -> Any:
    if _INTEGER.match(text):
        return int(text)
    if not _WORD.match(text):
        raise ValueError(f"{entry[:80]!r}: {text[:40]!r} is neither a number nor a word")
    return {"true": True, "false": False}.get(text, text)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


#: An entry of ``engines`` in its normal form.
EngineChoice = Annotated[str, AfterValidator(lambda text: str(parse_entry(text)))]
