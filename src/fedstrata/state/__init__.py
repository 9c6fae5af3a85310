"""What outlives a round: checkpoints that are whole or absent, rows kept for clients, lines of results, and the lock of a run folder."""

from fedstrata.container import sha256_of
from fedstrata.state.checkpoint import Checkpoint, committed, load, save
from fedstrata.state.disk import crash_point
from fedstrata.state.lines import Lines, append_line, lock, read_lines, truncate_lines
from fedstrata.state.rowfile import Row
from fedstrata.state.rows import MappedRows, MemoryRows, RowStore, preflight

__all__ = [
    "Checkpoint",
    "save",
    "load",
    "committed",
    "Row",
    "RowStore",
    "MemoryRows",
    "MappedRows",
    "preflight",
    "lock",
    "append_line",
    "read_lines",
    "truncate_lines",
    "Lines",
    "sha256_of",
    "crash_point",
]
