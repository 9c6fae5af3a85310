"""Compare several methods on the same federation: the runs, their cache, the processes, screening and sweeps."""

from fedstrata.compare.comparison import compare
from fedstrata.compare.comparison_file import read
from fedstrata.compare.sweep import sweep

__all__ = ["compare", "read", "sweep"]
