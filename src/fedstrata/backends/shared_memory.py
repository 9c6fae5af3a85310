"""Tensors through shared memory between a process and its forked workers.

No pickle, and no copy on the reading side.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

import torch
from torch import Tensor

ALIGN = 64
_TYPES = {
    str(t).removeprefix("torch."): t
    for t in (
        torch.float32,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
        torch.bfloat16,
        torch.float16,
    )
}


class Channel:
    """One direction of traffic: a memory file that both sides hold and that grows when a message needs more."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(f"fedstrata-{name}")
        self.map: mmap.mmap | None = None

    def write(self, tensors: Mapping[str, Tensor]) -> list[list[object]]:
        """Copy tensors in; returns the rows (name, dtype, shape, offset) that :meth:`read` needs."""
        rows, at = [], 0
        for name, tensor in tensors.items():
            rows.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at])
            at = -(-(at + tensor.numel() * tensor.element_size()) // ALIGN) * ALIGN
        self._reach(max(at, ALIGN), grow=True)
        for row, tensor in zip(rows, tensors.values(), strict=True):
            self._view(row).copy_(tensor)
        return rows

    def read(self, rows: list[list[object]]) -> dict[str, Tensor]:
        """Return views into the memory; valid until the writer's next message."""
        ends = [int(offset) + _count(shape) * _TYPES[str(kind)].itemsize for _, kind, shape, offset in rows]  # type: ignore[call-overload]
        self._reach(max([ALIGN, *ends]), grow=False)
        return {str(row[0]): self._view(row) for row in rows}

    def _view(self, row: list[object]) -> Tensor:
        _, kind, shape, offset = row
        count = _count(shape)
        if count == 0:
            return torch.zeros(shape, dtype=_TYPES[str(kind)])  # type: ignore[call-overload,no-any-return]
        assert self.map is not None
        return torch.frombuffer(self.map, dtype=_TYPES[str(kind)], count=count, offset=int(offset)).view(shape)  # type: ignore[call-overload,no-any-return]

    def _reach(self, size: int, *, grow: bool) -> None:
        if self.map is not None and len(self.map) >= size:
            return
        if grow:
            os.ftruncate(self.fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.map = mmap.mmap(self.fd, 0)  # an older map lives as long as tensors that view it

    def close(self) -> None:
        """Give the memory back once no tensor views it."""
        self.map = None
        os.close(self.fd)


def _count(shape: object) -> int:
    return int(torch.Size(shape).numel())  # type: ignore[arg-type]
