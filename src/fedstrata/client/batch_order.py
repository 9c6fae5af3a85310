"""The order in which local steps read samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.common import random_streams
from fedstrata.core.plan import batches_of


@dataclass(frozen=True)
class Order:
    """The positions that local steps read: derived from (seed, purpose, round, client) alone."""

    seed: int
    keys: tuple[int | str, ...]
    samples: int
    batch: int
    draw: str
    merge_single: bool

    def batches(self, *, epochs: int | None, steps: int | None) -> Iterator[tuple[int, Tensor]]:
        """Yield (epoch, positions [B] int64)."""
        each = batches_of(self.samples, self.batch, merge=self.merge_single)
        rng = random_streams.stream(self.seed, "order", *self.keys)
        if self.draw == "cycle":
            left = steps if steps is not None else each * (epochs or 0)
            epoch = 0
            while left > 0:
                for positions in self._cut(torch.from_numpy(rng.permutation(self.samples)))[:left]:
                    yield epoch, positions
                left -= each
                epoch += 1
            return
        total = steps if steps is not None else each * (epochs or 0)
        size = min(self.batch, self.samples)
        for step in range(total):
            drawn = (
                rng.choice(self.samples, size, replace=False)
                if self.draw == "fresh"
                else rng.integers(self.samples, size=size)
            )
            yield step, torch.from_numpy(drawn)

    def _cut(self, order: Tensor) -> list[Tensor]:
        parts = list(torch.split(order, self.batch))
        if self.merge_single and len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [order[(len(parts) - 2) * self.batch :]]  # a norm cannot look at one sample
        return parts
