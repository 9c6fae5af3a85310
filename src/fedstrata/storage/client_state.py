"""Per-client rows: what is kept for a client between rounds (personal layers, control variates, momenta).

A row exists once it was first written; a client that was never asked costs nothing. Rows are copied on write, round by
round: all rows written since the last commit go into one new file ``rows-<round>.safetensors``, older files are never
changed, and the checkpoint manifest names the files in the order of their writing. A client's row is the one in the
newest file that has it, so the index needs no further bytes, however many clients were seen.

Old rows are dead weight. A file of which more than ``STALE`` is dead has its living rows moved into the next file
written, and where there are more than ``FILES`` files the smaller half is merged; so the disk holds at most about twice
the living rows, plus what the checkpoint before needs.
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.errors import StateError, WireError
from fedstrata.storage import atomic_files
from fedstrata.storage.atomic_files import DamagedError, Stamp
from fedstrata.storage.client_state_file import LIMITS, Held, Row, RowFile, Source, parts
from fedstrata.storage.container import DTYPES, check_name

Part: TypeAlias = dict[str, Any]  # a store's part of the checkpoint manifest: plain JSON

STALE = 0.5  # a file with a larger share of dead rows is emptied at the next commit
FILES = 64  # rows files at a time; each is an open map
ROOM = 0.9  # share of the free memory or disk that rows may plan with

_FILE = re.compile(r"rows-[0-9]{1,18}\.safetensors")


class RowStore(Protocol):
    """Where rows live. Rows come and go as private copies: nothing outside can change what is stored."""

    def get(self, client: int) -> Row | None:
        """The client's row, or None if none was written yet."""

    def put(self, at: int, rows: Mapping[int, Row]) -> None:
        """Keep these rows, written in round ``at``; they last once they are committed."""

    def seen(self) -> int:
        """How many clients have a row."""

    def commit(self, folder: Path, at: int) -> Part:
        """Write what is new into one file of the folder; the manifest that takes the returned part makes it count."""

    def open(self, folder: Path, part: Part) -> None:
        """Forget everything and take the rows that a manifest names, after their digests were checked."""


@dataclass
class _File:
    stamp: Stamp
    clients: NDArray[np.int64]
    living: int  # of these clients, those that have no newer row


class _Rows(ABC):
    """What both stores share: the index, the files and their upkeep."""

    def __init__(self) -> None:
        self._fresh: dict[int, Row] = {}  # written since the last commit
        self._where: dict[int, str] = {}  # client -> file
        self._files: dict[str, _File] = {}  # in the order of writing
        self._round = -1

    def get(self, client: int) -> Row | None:
        """The client's row as a private copy, or None if none was written yet."""
        if client in self._fresh:
            return _copy(self._fresh[client])
        return self._kept(client) if client in self._where else None

    def put(self, at: int, rows: Mapping[int, Row]) -> None:
        """Keep copies of these rows.

        Raises:
            StateError: a round before the last one, or a tensor that cannot be stored; nothing of the call is kept
                then.
        """
        if at < self._round:
            raise StateError(f"rows of round {at} after rows of round {self._round}: rounds only go forward.")
        for client, row in rows.items():
            _check_row(client, row)
        self._fresh |= {int(client): _copy(row) for client, row in rows.items()}
        self._round = at

    def seen(self) -> int:
        """How many clients have a row."""
        return len(self._where) + sum(client not in self._where for client in self._fresh)

    def commit(self, folder: Path, at: int) -> Part:
        """Write what is new, and what must be moved, into ``rows-<round>.safetensors``.

        Raises:
            StateError: the file could not be written; the store is as it was, and may be committed again.
        """
        if at < self._round:
            raise StateError(f"round {at} cannot be committed: rows of round {self._round} are there.")
        if self._fresh:
            name = f"rows-{at}.safetensors"
            emptied = self._emptied(name)
            sources: dict[int, Source] = {int(c): self._source(int(c)) for old in emptied for c in self._living(old)}
            sources |= {client: Held(row) for client, row in self._fresh.items()}
            stamp = atomic_files.write_file(folder / name, parts(sources), "rows")
            self._settle(name, folder / name, stamp)
            self._take(name, stamp, np.array(sorted(sources), dtype=np.int64))
            self._fresh = {}
        self._round = at
        return {
            "seen": len(self._where),
            "files": [{"name": n, "sha256": f.stamp.sha256, "bytes": f.stamp.bytes} for n, f in self._files.items()],
        }

    def open(self, folder: Path, part: Part) -> None:
        """Replace everything by the rows that the part names.

        Raises:
            StateError: a missing, damaged or misnamed file, or fewer clients than were saved.
        """
        self._fresh, self._where, self._files, self._round = {}, {}, {}, -1
        self._forget()
        for name, stamp in stamps(part).items():
            file = RowFile(folder / name, stamp)
            self._read(name, file)
            self._take(name, stamp, file.clients)
        if len(self._where) != part["seen"]:
            raise DamagedError(f"{folder}: the rows files hold {len(self._where)} clients; {part['seen']} were saved.")

    def _emptied(self, name: str) -> list[str]:
        """Return the files whose living rows move into the next one.

        They are mostly dead ones, one of the same name, and the smaller half of too many.
        """
        chosen = [n for n, f in self._files.items() if f.living < (1 - STALE) * len(f.clients) or n == name]
        rest = sorted((n for n in self._files if n not in chosen), key=lambda n: self._files[n].living)
        return chosen + (rest[: len(rest) // 2] if len(rest) >= FILES else [])

    def _living(self, name: str) -> NDArray[np.int64]:
        clients = self._files[name].clients
        return clients[[self._where[int(client)] == name for client in clients]]

    def _take(self, name: str, stamp: Stamp, clients: NDArray[np.int64]) -> None:
        """Enter a file as the newest; files without a living row are no longer named."""
        self._files.pop(name, None)  # one of the same name has been emptied into this one
        for client in clients.tolist():
            before = self._files.get(self._where.get(client, ""))
            if before is not None:
                before.living -= 1
            self._where[client] = name
        self._files[name] = _File(stamp, clients, len(clients))
        self._files = {n: f for n, f in self._files.items() if f.living}

    @abstractmethod
    def _kept(self, client: int) -> Row:
        """A private copy of a committed row."""

    @abstractmethod
    def _source(self, client: int) -> Source:
        """A committed row, to be moved."""

    @abstractmethod
    def _settle(self, name: str, path: Path, stamp: Stamp) -> None:
        """A file was written."""

    @abstractmethod
    def _read(self, name: str, file: RowFile) -> None:
        """A file was opened and checked."""

    @abstractmethod
    def _forget(self) -> None:
        """Start anew."""


class MemoryRows(_Rows):
    """All rows in memory; files are written for a resume only."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[int, Row] = {}

    def _kept(self, client: int) -> Row:
        return _copy(self._rows[client])

    def _source(self, client: int) -> Source:
        return Held(self._rows[client])

    def _settle(self, name: str, path: Path, stamp: Stamp) -> None:
        self._rows |= self._fresh

    def _read(self, name: str, file: RowFile) -> None:
        self._rows |= {client: file.row(client) for client in file.clients.tolist()}

    def _forget(self) -> None:
        self._rows = {}


class MappedRows(_Rows):
    """Rows in the committed files, read through memory maps.

    Only what was written since the last commit is held in memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._maps: dict[str, RowFile] = {}

    def _kept(self, client: int) -> Row:
        return self._maps[self._where[client]].row(client)

    def _source(self, client: int) -> Source:
        return self._maps[self._where[client]].source(client)

    def _settle(self, name: str, path: Path, stamp: Stamp) -> None:
        self._maps[name] = RowFile(path, stamp, check=False)  # the checkpoint reads it back before it counts

    def _take(self, name: str, stamp: Stamp, clients: NDArray[np.int64]) -> None:
        super()._take(name, stamp, clients)
        self._maps = {n: m for n, m in self._maps.items() if n in self._files}

    def _read(self, name: str, file: RowFile) -> None:
        self._maps[name] = file

    def _forget(self) -> None:
        self._maps = {}


def stamps(part: Part) -> dict[str, Stamp]:
    """The files that a part of a manifest names, in the order of their writing.

    Raises:
        StateError: a part that no store wrote; a name that is not a rows file's own is never opened.
    """
    try:
        found = {entry["name"]: Stamp(entry["sha256"], entry["bytes"]) for entry in part["files"]}
        whole = isinstance(part["seen"], int) and len(found) == len(part["files"])
    except (KeyError, TypeError):
        found, whole = {}, False
    if not whole or not all(isinstance(name, str) and _FILE.fullmatch(name) for name in found):
        raise DamagedError("the manifest's rows are not a list of rows files with name, sha256 and bytes.")
    return found


def preflight(clients: int, bytes_per_row: int, where: Path | None) -> None:
    """Refuse, before round 0, rows that cannot fit.

    Args:
        clients: how many can ever get a row: at most the population, and at most cohort times rounds.
        bytes_per_row: of one client's row.
        where: the folder of the files, for rows on disk; None for rows in memory. Disk is counted twice, for old rows
            not yet cleared.
    Raises:
        StateError: with the arithmetic and the options.
    """
    copies = 1 if where is None else 2
    need = clients * bytes_per_row * copies
    free = psutil.virtual_memory().available if where is None else shutil.disk_usage(_existing(where)).free
    if need <= free * ROOM:
        return
    place = "memory" if where is None else f"the disk of {where}"
    raise StateError(
        f"rows of {clients:,} clients x {amount(bytes_per_row)}{' x 2 (old rows are cleared later)' * (copies - 1)} ="
        f" {amount(need)}; {amount(free)} of {place} are free, and {ROOM:.0%} of that may be planned. Options:"
        f" {'keep rows on disk; ' if where is None else 'another disk; '}fewer clients, or fewer rounds x cohort; a"
        " smaller model, or fewer layers in the row; a method without state per client."
    )


def amount(count: float) -> str:
    """Format bytes for readers: 4.9 MB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def _existing(folder: Path) -> Path:
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())


def _copy(row: Row) -> Row:
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in row.items()}


def _check_row(client: int, row: Row) -> None:
    if not 0 <= client < 2**63:
        raise StateError(f"a row for client {client}; ids are counted from 0.")
    for name, tensor in row.items():
        try:
            check_name(name, LIMITS)
        except WireError as error:
            raise StateError(f"client {client}'s row: {error}") from error
        if (
            not isinstance(tensor, Tensor)
            or tensor.dtype not in DTYPES
            or tensor.device.type != "cpu"
            or tensor.layout != torch.strided
        ):
            kind = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise StateError(
                f"client {client}'s row: {name} is {kind}; a dense CPU tensor of {', '.join(DTYPES.values())} can be"
                " kept."
            )
