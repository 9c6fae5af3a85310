"""Placeholder of the net room (the lead writes it); models need only Dropout."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Element-wise dropout whose masks come from a derived stream, never from the process-wide generator.

    Args:
        p: share of entries set to zero while training, in [0, 1); the rest is scaled by 1 / (1 - p).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout p is {p}; it is a share of entries, in [0, 1).")
        self.p = p
        self.draw: Callable[[torch.Size], Tensor] | None = None  # set by the engine: uniforms of that shape

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        assert self.draw is not None, "the engine gives every Dropout its stream before training"
        return x * (self.draw(x.shape) >= self.p) / (1 - self.p)
