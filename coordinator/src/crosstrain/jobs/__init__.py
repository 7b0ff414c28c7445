"""Jobs: planned once, executed on services, followed through every failure."""

from .comparison import compare_runs
from .creation import JobCreator
from .datasets import Datasets
from .planning import Planner
from .scheduler import Scheduler

__all__ = ["Datasets", "JobCreator", "Planner", "Scheduler", "compare_runs"]
