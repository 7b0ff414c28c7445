"""Counters of this process, fed by the parts that know."""

from __future__ import annotations

import logging

from crosstrain_service.metrics import Values

from .definitions import METRICS, VERDICTS

_LOG = logging.getLogger("crosstrain.metrics")
#: One process is one coordinator.
VALUES = Values(METRICS)
for _verdict in VERDICTS:
    VALUES.add("crosstrain_coordinator_verdicts_total", (_verdict,), 0)


def record_verdict(job: str, verdict: str) -> None:
    """Counts the verdict on one pair of engines.

    Args:
        job: the job's id, for the log only: a label may not grow with the number of jobs.
        verdict: one of :data:`VERDICTS` in any case; anything else counts as "other".
    """
    name = str(verdict).lower()
    if name not in VERDICTS:
        _LOG.warning("job %s has a verdict that is not known: %s", job, name[:40])
        name = "other"
    VALUES.add("crosstrain_coordinator_verdicts_total", (name,))


def record_fanout(service: str, seconds: float) -> None:
    """Notes how long it took to hand one run to its service."""
    VALUES.observe("crosstrain_coordinator_fanout_duration_seconds", (service,), seconds)
