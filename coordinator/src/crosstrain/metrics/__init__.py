"""Metrics of the coordinator: counters that its parts feed, and a collector of what its store knows.

Any part may call :func:`record_verdict` and :func:`record_fanout`; they never raise and take microseconds.
"""

from __future__ import annotations

from .collector import CoordinatorMetrics
from .definitions import METRICS, VERDICTS
from .recording import record_fanout, record_verdict

__all__ = ["METRICS", "VERDICTS", "CoordinatorMetrics", "record_fanout", "record_verdict"]
