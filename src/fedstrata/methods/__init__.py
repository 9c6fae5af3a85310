"""Methods: one idea a file, no loop; see ``registry.py``."""

from fedstrata.methods.parts.rows import Limit, NoLimit, Row
from fedstrata.methods.registry import find, method, register, row_of, rows, table

__all__ = ["Limit", "NoLimit", "Row", "find", "method", "register", "row_of", "rows", "table"]
