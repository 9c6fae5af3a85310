"""Several methods on the same federation: the grid of runs, their cache, the processes that make them, screening and
sweeps.
"""

from fedstrata.compare.comparison import compare
from fedstrata.compare.comparison_file import read
from fedstrata.compare.sweep import sweep

__all__ = ["compare", "read", "sweep"]
