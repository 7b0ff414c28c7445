"""The report of a job: one HTML page with the verdict, its evidence and the charts.

``python -m crosstrain.report FOLDER`` makes the page again from a results folder.
"""

from .data import CrossRow, Epoch, ReportData, RunData, from_record, from_runs
from .folder import load_folder, load_verdict
from .page import SIZE_LIMIT, render_report, write_report

__all__ = [
    "SIZE_LIMIT",
    "CrossRow",
    "Epoch",
    "ReportData",
    "RunData",
    "from_record",
    "from_runs",
    "load_folder",
    "load_verdict",
    "render_report",
    "write_report",
]
