"""Jobs: planned once, executed on services, followed through every failure."""

from .comparison import compare_runs
from .creation import JobCreator
from .datasets import Datasets
from .judgement import Judgement
from .planning import Planner
from .scheduler import Scheduler

__all__ = ["Datasets", "JobCreator", "Judgement", "Planner", "Scheduler", "compare_runs"]
