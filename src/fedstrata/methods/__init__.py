"""Methods: one idea a file, no loop; see ``registry.py``."""

from fedstrata.methods.parts.rows import Limit, NoLimit, Row
from fedstrata.methods.registry import find, measures_of, method, register, row_of, rows, source_of, table

__all__ = [
    "Limit",
    "NoLimit",
    "Row",
    "find",
    "measures_of",
    "method",
    "register",
    "row_of",
    "rows",
    "source_of",
    "table",
]
