"""Models by name, and checks of a user's own."""

from fedstrata.models.registry import Row, build, count, find, register, rows

__all__ = ["Row", "build", "count", "find", "register", "rows"]
