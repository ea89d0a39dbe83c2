"""The report page: what runs save and what that costs, to look at."""

from depthwise.report.choosing import sample
from depthwise.report.data import page_data
from depthwise.report.page import page
from depthwise.report.reading import RunFiles, read_run, read_runs

__all__ = ["RunFiles", "page", "page_data", "read_run", "read_runs", "sample"]
