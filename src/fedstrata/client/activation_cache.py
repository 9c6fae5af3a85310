"""Cache the activations of frozen layers over one client's local steps, wherever that is exact."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstrata.client.frozen_prefix import Context, NetworkCut, NotCached, Traced, cut, doubt
from fedstrata.core.layout import Names
from fedstrata.core.network import BoundModel
from fedstrata.core.plan import Setup


@dataclass
class CachePlanner:
    """Decide what one worker caches.

    Attributes:
        bound: the worker's model.
        setup: of the run.
        traced: the model's body as a graph, or why there is none; shared by all workers.
        splits_batches: the method looks at parts of batches.
        augmented: samples are augmented, anew in each epoch.
        context: the precision that forward passes run in.
        cuts: known splits, by trained parameters.
    """

    bound: BoundModel
    setup: Setup
    traced: Traced | NotCached
    splits_batches: bool
    augmented: bool
    context: Context
    cuts: dict[Names, NetworkCut | NotCached] = field(default_factory=dict)

    def plan(self, names: Names, samples: int, *, rereads: bool) -> ActivationCache | NotCached:
        """Return an empty cache for the training of these parameters, or why none is used.

        Args:
            names: of the trained parameters.
            samples: of the client.
            rereads: whether samples are read more than once.
        """
        local = self.setup.local
        if len(names) == len(self.setup.layout.parameters) or not local.activation_cache_mb:
            return NotCached()
        split = self.cut(names)
        if isinstance(split, NotCached):
            return split
        if self.splits_batches:
            return NotCached("the method looks at parts of batches")
        if not rereads:
            return NotCached("each sample is read once")
        if split.bytes * samples > local.activation_cache_mb * 1e6:
            return NotCached(
                f"a client's samples would take more than local.activation_cache_mb={local.activation_cache_mb}"
            )
        return ActivationCache(split, samples, autocast=local.precision != "float32")

    def cut(self, names: Names) -> NetworkCut | NotCached:
        """Return the body in two parts for the training of these parameters, or why it is not split."""
        if names not in self.cuts:
            self.cuts[names] = self._cut(names)
        return self.cuts[names]

    def _cut(self, names: Names) -> NetworkCut | NotCached:
        if isinstance(self.traced, NotCached):
            return self.traced
        if self.setup.layout.integers:
            return NotCached("the network is another one in other rounds")
        split = cut(self.traced, self.bound, names)
        if isinstance(split, NotCached):
            return split
        if self.augmented:
            return NotCached("samples are augmented, anew in each epoch")
        return doubt(split, self.bound, names, self.setup.model, self.traced.probe, self.context) or split

    def reasons(self) -> list[str]:
        """Return the reasons against caching that were met, each once."""
        reasons = [split.reason for split in self.cuts.values() if isinstance(split, NotCached)]
        return [reason for reason in dict.fromkeys(reasons) if reason]


class ActivationCache:
    """Activations at a split of the network, filled as samples are first read.

    Args:
        cut: the network in two parts.
        samples: of the client.
        autocast: whether forward passes run in reduced precision; where a piece leaves it, the cache is not used.
    Attributes:
        count: samples that the prefix was run on; used: whether anything was read from the cache.
        watch: a context that the prefix runs in, for a counter.
    """

    def __init__(self, cut: NetworkCut, samples: int, *, autocast: bool) -> None:
        self.cut, self.autocast = cut, autocast
        self.known = torch.zeros(samples, dtype=torch.bool)
        self.left = samples
        self.store: list[tuple[Tensor, list[int]]] = []  # [samples, ...] in memory order, and the way back
        self.x: Tensor | None = None
        self.positions = torch.empty(0, dtype=torch.int64)
        self.count, self.used = 0, False
        self.watch: Callable[[], AbstractContextManager[object]] = nullcontext

    def at(self, x: Tensor, positions: Tensor) -> None:
        """Take the current batch and the positions of its samples among the client's."""
        self.x, self.positions = x, positions

    def holds(self, x: Tensor) -> bool:
        """Say whether these are the samples of the current batch, in the precision of the cache."""
        return x is self.x and torch.is_autocast_enabled("cpu") == self.autocast

    def features(self, x: Tensor) -> Tensor:
        """Return [B, d] features of the current batch; ``x`` has the memory layout that the network wants."""
        self.used = True
        missing = ~self.known[self.positions] if self.left else None
        if missing is None or not bool(missing.any()):
            return self.cut.features(x, self._read(self.positions))
        if bool(missing.all()) and len(set(self.positions.tolist())) == len(self.positions):
            values = self._run(x)
            self._write(values, self.positions)
            return self.cut.features(x, values)
        first = _first(self.positions, missing)
        self._write(self._run(x[first]), self.positions[first])
        return self.cut.features(x, self._read(self.positions))

    def _run(self, x: Tensor) -> tuple[Tensor, ...]:
        self.count += len(x)
        with torch.no_grad(), self.watch():
            return self.cut.prefix(x)

    def _write(self, values: tuple[Tensor, ...], positions: Tensor) -> None:
        if not self.store:
            self.store = [_allocate(v, len(self.known)) for v in values]
        for value, (store, back) in zip(values, self.store, strict=True):
            store.index_copy_(0, positions, value.permute(_inverse(back)))
        self.known[positions] = True
        self.left -= len(positions)

    def _read(self, positions: Tensor) -> list[Tensor]:
        return [store.index_select(0, positions).permute(back) for store, back in self.store]


def _allocate(value: Tensor, samples: int) -> tuple[Tensor, list[int]]:
    """Allocate memory for all samples in the memory order of the value, so that reads have its layout."""
    strides = value.stride()
    order = sorted(range(value.dim()), key=lambda d: (-strides[d], d))
    if order[0] != 0 or not value.permute(order).is_contiguous():
        order = list(range(value.dim()))
    return value.new_empty((samples, *(value.shape[d] for d in order[1:]))), _inverse(order)


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _first(positions: Tensor, missing: Tensor) -> Tensor:
    """Return positions in the batch of the samples that are missing, each once."""
    first = {int(p): i for i, p in reversed(list(enumerate(positions.tolist()))) if missing[i]}
    return torch.tensor(sorted(first.values()))
