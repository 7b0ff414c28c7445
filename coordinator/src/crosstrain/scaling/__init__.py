"""How much faster several ranks are than one, and Crosstrain than plain scripts, measured over the runs of one job."""

from .bare import BareScriptFailed
from .bare_runs import BareFigures, BareRuns, available_cores, settings_of
from .measure import COLUMNS, Interval, ScaleRow, measure, scale_csv
from .page import scale_page

__all__ = [
    "COLUMNS",
    "BareFigures",
    "BareRuns",
    "BareScriptFailed",
    "Interval",
    "ScaleRow",
    "available_cores",
    "measure",
    "scale_csv",
    "scale_page",
    "settings_of",
]
