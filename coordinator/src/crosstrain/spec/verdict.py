"""The part of a job document that says how the job is judged."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from .base import Part, wrong

#: Largest number of a step that a probe may record, and most steps of one probe.
MAX_PROBE_STEP = 999
MAX_PROBE_STEPS = 16
MAX_ENVELOPE = 100
MAX_SEEDS = 1000

Step = Annotated[int, Field(ge=0, le=MAX_PROBE_STEP)]


class VerdictSpec(Part):
    """What is done to find out whether the engines computed the same function.

    ``judge`` is true in parity mode and false in speed mode unless given. ``probe`` records ``steps`` of a
    small batch in every engine and checks them piece by piece. ``envelope`` is the number of further training
    runs, from initial weights moved by one unit in the last place, that tell how far rounding drives losses
    apart. ``seeds`` is the number of seeds, the job's own among them, over which final accuracies are tested for
    equivalence; ``margin`` is the largest difference of accuracies that counts as none.
    ``probe_record_mib`` bounds what one recorded step takes; the probe's batch is cut to it.
    ``keep_records`` keeps the recorded tensors after the verdict; they take much room.
    """

    judge: bool | None = None
    probe: bool = True
    steps: Annotated[list[Step], Field(min_length=1, max_length=MAX_PROBE_STEPS)] = [0, 1, 2]
    envelope: Annotated[int, Field(ge=0, le=MAX_ENVELOPE)] = 4
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)] = 1
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.01
    probe_record_mib: Annotated[int, Field(ge=1, le=4096)] = 16
    keep_records: bool = False

    @model_validator(mode="after")
    def _increasing(self) -> VerdictSpec:
        for place, (before, after) in enumerate(zip(self.steps, self.steps[1:], strict=False), 1):
            if after <= before:
                raise wrong(("verdict", "steps", place), f"{after} after {before}: steps must count upwards")
        return self
