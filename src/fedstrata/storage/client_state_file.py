"""One file of rows: rows of equal form are stacked, [clients, *shape] for each name, beside the sorted client ids.

The header is as short for ten thousand clients as for one, and a row is a few slices of a memory map.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.errors import WireError
from fedstrata.storage import atomic_files, container
from fedstrata.storage.atomic_files import DamagedError, Stamp
from fedstrata.storage.container import Form, Limits

Row: TypeAlias = dict[str, Tensor]  # flat names such as "scaffold.control"

LIMITS = Limits(message=1 << 50, header=1 << 26, tensors=1 << 20, rank=9, name=300)
_FORMAT = {"format": "fedstrata.rows.1"}


class Source(Protocol):
    """A row that can be written: what it is made of, and the bytes of each tensor."""

    def forms(self) -> dict[str, Form]:
        """Name -> (shape, dtype)."""

    def raw(self, name: str) -> memoryview:
        """One tensor's bytes."""


@dataclass(frozen=True)
class Held:
    """A row in memory as a source."""

    row: Row

    def forms(self) -> dict[str, Form]:
        """Name -> (shape, dtype)."""
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.row.items()}

    def raw(self, name: str) -> memoryview:
        """One tensor's bytes."""
        return container.raw(self.row[name])


def parts(rows: Mapping[int, Source]) -> Iterator[bytes | memoryview]:
    """The bytes of a rows file, streamed: nothing larger than one tensor is held.

    Args:
        rows: client -> row. Rows may differ in form; each form is one group.
    """
    groups: dict[tuple[tuple[str, Form], ...], list[int]] = {}
    for client in sorted(rows):
        groups.setdefault(tuple(sorted(rows[client].forms().items(), key=lambda item: item[0])), []).append(client)
    shapes: dict[str, Form] = {}
    pieces: dict[str, tuple[list[int], str | None]] = {}
    for number, (forms, clients) in enumerate(groups.items()):
        shapes[f"{number}.clients"], pieces[f"{number}.clients"] = ((len(clients),), torch.int64), (clients, None)
        for name, (shape, dtype) in forms:
            shapes[f"{number}/{name}"], pieces[f"{number}/{name}"] = ((len(clients), *shape), dtype), (clients, name)
    head, order, _ = container.head(shapes, _FORMAT, LIMITS)
    yield head
    for key in order:
        clients, name_or_ids = pieces[key]
        if name_or_ids is None:
            yield np.array(clients, dtype="<i8").tobytes()
        else:
            yield from (rows[client].raw(name_or_ids) for client in clients)


@dataclass(frozen=True)
class _Group:
    clients: NDArray[np.int64]  # sorted
    forms: dict[str, Form]  # of one row
    starts: dict[str, int]  # byte at which the stack of a name begins


class RowFile:
    """A committed file, mapped into memory; closed when no reference is left.

    Args:
        path: the file.
        stamp: what it must be.
        check: read all of it and compare; False only for a file that this process has just written.
    Raises:
        DamagedError: missing, damaged, or not a rows file.
    """

    def __init__(self, path: Path, stamp: Stamp, *, check: bool = True) -> None:
        self.stamp = stamp
        self._map = _mapped(path, stamp)
        if check and hashlib.sha256(self._map).hexdigest() != stamp.sha256:
            raise DamagedError(f"{path} is damaged: its SHA-256 is not the one that was saved.")
        try:
            contents = container.parse(memoryview(self._map), LIMITS)
        except WireError as error:
            raise DamagedError(f"{path} is not a rows file: {error}") from error
        if contents.metadata != _FORMAT:
            raise DamagedError(f"{path} is not a rows file that this version reads: {contents.metadata}.")
        numbers = [
            key.removesuffix(".clients") for key in contents.entries if key.endswith(".clients") and "/" not in key
        ]
        self._groups = [_group(self._map, contents, number) for number in numbers]
        self.clients: NDArray[np.int64] = np.concatenate([group.clients for group in self._groups])

    def source(self, client: int) -> Source:
        """A row of this file, to be written into another."""
        for group in self._groups:
            place = int(np.searchsorted(group.clients, client))
            if place < len(group.clients) and group.clients[place] == client:
                return _Mapped(self._map, group, place)
        raise AssertionError(f"client {client} is not in this file; the index is wrong")

    def row(self, client: int) -> Row:
        """A private copy of a row."""
        source = self.source(client)
        return {name: _tensor(source.raw(name), form) for name, form in source.forms().items()}


@dataclass(frozen=True)
class _Mapped:
    map: mmap.mmap
    group: _Group
    place: int

    def forms(self) -> dict[str, Form]:
        return self.group.forms

    def raw(self, name: str) -> memoryview:
        length = container.nbytes(self.group.forms[name])
        start = self.group.starts[name] + self.place * length
        return memoryview(self.map)[start : start + length]


def _mapped(path: Path, stamp: Stamp) -> mmap.mmap:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            length = os.fstat(handle).st_size
            if length != stamp.bytes or not length:
                raise DamagedError(f"{path} is damaged: it has {length} bytes, and {stamp.bytes} were saved.")
            return mmap.mmap(handle, length, access=mmap.ACCESS_READ)
        finally:
            os.close(handle)
    except OSError as error:
        atomic_files.refuse("read", path, error)


def _group(data: mmap.mmap, contents: container.Contents, number: str) -> _Group:
    ids = contents.entries[f"{number}.clients"]
    clients = np.frombuffer(data, dtype="<i8", count=ids.shape[0], offset=contents.start + ids.begin).astype(np.int64)
    mine = {key.split("/", 1)[1]: entry for key, entry in contents.entries.items() if key.startswith(f"{number}/")}
    forms: dict[str, Form] = {name: (entry.shape[1:], entry.dtype) for name, entry in mine.items()}
    return _Group(clients, forms, {name: contents.start + entry.begin for name, entry in mine.items()})


def _tensor(raw: memoryview, form: Form) -> Tensor:
    shape, dtype = form
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    return container.aligned(torch.from_numpy(np.frombuffer(raw, dtype=np.uint8).copy()).view(dtype).reshape(shape))
