"""What all parts of a job document have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

MAX_SIZE = 1 << 24
MAX_SEED = 2**31 - 1
MAX_STEPS = 10_000_000
MAX_RANKS = 1024


class Part(BaseModel):
    """A part of the document: unknown fields, values of another type and infinities are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


#: Type of an error that says itself which value is wrong.
WRONG = "crosstrain"


def wrong(path: tuple[str | int, ...], message: str) -> PydanticCustomError:
    """An error about the value at ``path`` of the whole document, for checks across fields."""
    return PydanticCustomError(WRONG, "{message}", {"path": path, "message": message})


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
LayerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
#: ``name`` or ``name@version``.
ENGINE_PATTERN = r"^[a-z][a-z0-9_-]{0,63}(@[0-9A-Za-z][0-9A-Za-z.+_-]{0,63})?$"
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Padding = Annotated[int, Field(ge=0, le=MAX_SIZE)]
#: In [0, 1).
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
