"""Methods: one idea a file, no loop; see ``registry.py``."""

from fedstrata.methods.registry import Limit, NoLimit, Row, find, method, register, rows, table

__all__ = ["Limit", "NoLimit", "Row", "find", "method", "register", "rows", "table"]
