"""How much faster several ranks are than one, measured over the runs of one job."""

from .measure import COLUMNS, Interval, ScaleRow, measure, scale_csv
from .page import scale_page

__all__ = ["COLUMNS", "Interval", "ScaleRow", "measure", "scale_csv", "scale_page"]
