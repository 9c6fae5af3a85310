"""What a run leaves for people: results, tables, pictures, progress."""

from fedstrata.report.figures import curve, partition
from fedstrata.report.files import write
from fedstrata.report.progress import progress
from fedstrata.report.result import Result

__all__ = ["Result", "curve", "partition", "progress", "write"]
