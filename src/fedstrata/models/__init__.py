"""Build models by name, and check a user's module."""

from fedstrata.models.check import check, swap_dropout
from fedstrata.models.registry import Row, build, count, find, register, rows

__all__ = ["build", "register", "check", "swap_dropout", "count", "find", "rows", "Row"]
