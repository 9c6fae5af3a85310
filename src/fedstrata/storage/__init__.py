"""What outlives a round: whole checkpoints, clients' states, lines of results, and the lock of a run folder."""

from fedstrata.storage.atomic_files import crash_point
from fedstrata.storage.checkpoint import Checkpoint, committed, load, save
from fedstrata.storage.client_state import MappedRows, MemoryRows, RowStore, preflight
from fedstrata.storage.client_state_file import Row
from fedstrata.storage.container import sha256_of
from fedstrata.storage.jsonl import Lines, append_line, lock, read_lines, truncate_lines

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
