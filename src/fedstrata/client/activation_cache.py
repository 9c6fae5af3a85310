"""What is kept of one client's samples over its local steps: the values in front of the layers that are trained."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from fedstrata.client.frozen_prefix import NetworkCut


class ActivationCache:
    """The values at a cut, filled as samples are first read, in that order and company.

    Args:
        cut: the network in two parts.
        samples: of the client.
        autocast: whether forward passes run in reduced precision; where a piece leaves it, nothing kept is used.
    Attributes:
        count: samples that the front part was run on; used: whether anything asked for what is kept.
        watch: a context that the front part runs in, for a counter.
    """

    def __init__(self, cut: NetworkCut, samples: int, *, autocast: bool) -> None:
        self.cut, self.autocast = cut, autocast
        self.known = torch.zeros(samples, dtype=torch.bool)
        self.left = samples
        self.store: list[
            tuple[Tensor, list[int]]
        ] = []  # [samples, ...] in the order of the value's memory, and the way back
        self.x: Tensor | None = None
        self.positions = torch.empty(0, dtype=torch.int64)
        self.count, self.used = 0, False
        self.watch: Callable[[], AbstractContextManager[object]] = nullcontext

    def at(self, x: Tensor, positions: Tensor) -> None:
        """The batch in hand, and where its samples stand among the client's."""
        self.x, self.positions = x, positions

    def holds(self, x: Tensor) -> bool:
        """Whether these are the samples of the batch in hand, in the precision that is kept."""
        return x is self.x and torch.is_autocast_enabled("cpu") == self.autocast

    def features(self, x: Tensor) -> Tensor:
        """[B, d] of the batch in hand; ``x`` lies in memory as the network wants it."""
        self.used = True
        missing = ~self.known[self.positions] if self.left else None
        if missing is None or not bool(missing.any()):
            return self.cut.features(x, self._read(self.positions))
        if bool(missing.all()) and len(set(self.positions.tolist())) == len(self.positions):
            values = self._run(x)
            self._write(values, self.positions)
            return self.cut.features(x, values)
        places = _first(self.positions, missing)
        self._write(self._run(x[places]), self.positions[places])
        return self.cut.features(x, self._read(self.positions))

    def _run(self, x: Tensor) -> tuple[Tensor, ...]:
        self.count += len(x)
        with torch.no_grad(), self.watch():
            return self.cut.prefix(x)

    def _write(self, values: tuple[Tensor, ...], positions: Tensor) -> None:
        if not self.store:
            self.store = [_room(v, len(self.known)) for v in values]
        for value, (store, back) in zip(values, self.store, strict=True):
            store.index_copy_(0, positions, value.permute(_inverse(back)))
        self.known[positions] = True
        self.left -= len(positions)

    def _read(self, positions: Tensor) -> list[Tensor]:
        return [store.index_select(0, positions).permute(back) for store, back in self.store]


def _room(value: Tensor, samples: int) -> tuple[Tensor, list[int]]:
    """Memory for all samples in the order that the value has in memory, so that what is read lies as what was
    computed.
    """
    strides = value.stride()
    order = sorted(range(value.dim()), key=lambda d: (-strides[d], d))
    if order[0] != 0 or not value.permute(order).is_contiguous():
        order = list(range(value.dim()))
    return value.new_empty((samples, *(value.shape[d] for d in order[1:]))), _inverse(order)


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _first(positions: Tensor, missing: Tensor) -> Tensor:
    """Places in the batch of the samples that are not known yet, each once."""
    found = {int(p): i for i, p in reversed(list(enumerate(positions.tolist()))) if missing[i]}
    return torch.tensor(sorted(found.values()))
