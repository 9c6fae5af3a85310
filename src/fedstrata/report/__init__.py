"""Present results to readers: tables, pictures, pages, progress.

Pictures are in ``figures``, as matplotlib is only loaded by those who draw.
"""

from fedstrata.report.files import write
from fedstrata.report.progress import progress
from fedstrata.report.views import Result

__all__ = ["Result", "progress", "write"]
