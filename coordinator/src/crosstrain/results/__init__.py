"""The results folder of a job: tables, step records, log, and comparison with the reference engine."""

from .comparison import Difference, compare_with_reference
from .files import check_folder
from .records import JobRecord, RunRecord
from .writer import Results, read_job_verdict, summary, write_record, write_results

__all__ = [
    "Difference",
    "JobRecord",
    "Results",
    "RunRecord",
    "check_folder",
    "compare_with_reference",
    "read_job_verdict",
    "summary",
    "write_record",
    "write_results",
]
