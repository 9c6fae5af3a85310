"""Sets of samples: labels in memory, features read by index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedstrata.data.io.normalization import affine


class Samples(Protocol):
    """N samples that are read by index.

    Attributes:
        y: [N] int64 classes, or [N] float32 targets.
        lazy: True where ``take`` reads files: a client's data are then read a batch at a time; False where they are
            read once a round.
    """

    @property
    def y(self) -> Tensor:
        """Labels, [N]."""
        ...

    @property
    def lazy(self) -> bool:
        """Whether taking reads files."""
        ...

    def __len__(self) -> int: ...
    def take(self, index: Tensor) -> Tensor:
        """int64 [B] -> float32 [B, *shape], or int64 tokens [B, *shape]; freshly allocated, contiguous."""
        ...


@dataclass(frozen=True, eq=False)
class Tensors:
    """Features in memory.

    Args:
        x: [N, *shape] float32, or tokens of any integer type.
        y: [N] int64 or float32.
    """

    x: Tensor
    y: Tensor
    lazy: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Tensor:
        """See :class:`Samples`."""
        cut = self.x.index_select(0, index)
        return cut if cut.is_floating_point() else cut.to(torch.int64)


@dataclass(frozen=True, eq=False)
class Images:
    """Images in memory as bytes, normalised when they are read: a quarter of the memory of floats.

    Args:
        x: [N, C, H, W] uint8.
        y: [N] int64.
        mean: [C] in units of [0, 1] pixels.
        std: [C] in the same units, positive.
    """

    x: Tensor
    y: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    lazy: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Tensor:
        """See :class:`Samples`."""
        scale, shift = affine(self.mean, self.std)
        return self.x.index_select(0, index).to(torch.float32).mul_(scale).add_(shift)  # [B, C, H, W]


@dataclass(frozen=True, eq=False)
class Windows:
    """Overlapping windows over one long sequence, cut when they are read.

    Args:
        sequence: [T], tokens of any integer type or float32 values.
        starts: [N] int64, where each window begins; a window never crosses from one client to the next.
        width: values in a window.
        y: [N] int64 or float32.
    """

    sequence: Tensor
    starts: Tensor
    width: int
    y: Tensor
    lazy: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Tensor:
        """See :class:`Samples`."""
        positions = self.starts[index][:, None] + torch.arange(self.width)[None, :]  # [B, width]
        cut = self.sequence[positions]
        return cut if cut.is_floating_point() else cut.to(torch.int64)


@dataclass(frozen=True, eq=False)
class Joined:
    """Concatenate two sets; for splits that pool the official sets."""

    first: Samples
    second: Samples
    y: Tensor = field(init=False)
    lazy: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", torch.cat([self.first.y, self.second.y]))
        object.__setattr__(self, "lazy", self.first.lazy or self.second.lazy)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Tensor:
        """See :class:`Samples`."""
        late = index >= len(self.first)
        if not bool(late.any()):
            return self.first.take(index)
        if bool(late.all()):
            return self.second.take(index - len(self.first))
        front, back = self.first.take(index[~late]), self.second.take(index[late] - len(self.first))
        both = front.new_empty((len(index), *front.shape[1:]))
        both[~late] = front
        both[late] = back
        return both
