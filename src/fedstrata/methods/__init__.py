"""Methods: one idea a file, no loop; see ``registry.py``."""

from fedstrata.methods.registry import Limit, NoLimit, Row, method, register, rows, table

__all__ = ["Limit", "NoLimit", "Row", "method", "register", "rows", "table"]
