"""Resets: weights seen as kernels, the laws that new values are drawn from, and writing them into a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from fedstrata.core.layout import Layout
from fedstrata.core.params import Params

if TYPE_CHECKING:
    from numpy.random import Generator

Law: TypeAlias = Literal[
    "adp_normal",
    "uniform",
    "kaiming_uniform",
    "kaiming_normal",
    "xavier_normal",
    "xavier_uniform",
    "trunc_normal",
    "orthogonal",
    "laplace",
]
Unit: TypeAlias = Callable[[int, int, torch.Generator, torch.dtype], Tensor]  # -> [rows, width], mean 0

ROUNDING = 1e-9
"""A share times a count that is whole but for rounding, such as 100 * 0.29, is that whole number."""


@dataclass(frozen=True)
class Matrix:
    """A weight as a matrix.

    A row is a kernel (one output filter, all its input channels and taps) or what enters one neuron.

    Attributes:
        start: its first number in the flat vector; rows, width: its shape.
    """

    start: int
    rows: int
    width: int

    def of(self, flat: Tensor) -> Tensor:
        """Return [rows, width], a view."""
        return flat[self.start : self.start + self.rows * self.width].view(self.rows, self.width)

    def cut(self, parts: int) -> list[Matrix]:
        """Return equal stacks of rows: a fused projection as its single ones."""
        rows = self.rows // parts
        return [Matrix(self.start + i * rows * self.width, rows, self.width) for i in range(parts)]


def matrices(layout: Layout, kind: Literal["conv", "linear"]) -> list[Matrix]:
    """Return weights of all convolutions or linear layers, shallow to deep; biases and norms are none."""
    dims = range(3, 6) if kind == "conv" else range(2, 3)
    return [
        matrix(layout, n)
        for n in layout.spec.names
        if layout.entries[n].kind == kind and len(layout.entries[n].shape) in dims
    ]


def matrix(layout: Layout, name: str) -> Matrix:
    """Return one weight."""
    shape = layout.entries[name].shape
    return Matrix(layout.spec.offsets[name], shape[0], shape[1:].numel())


def moments(params: Params, m: Matrix) -> tuple[float, float]:
    """Return mean and standard deviation (unbiased) of all entries, computed once for these parameters."""

    def read() -> tuple[float, float]:
        std, mean = torch.std_mean(m.of(params.flat.detach()))
        return float(mean), float(std)

    return params.memoize(("moments", m), read)


def whole(share: float, count: int, *, least: int = 0) -> int:
    """Return floor(share * count), and at least ``least`` where the share is not 0.

    >>> whole(0.29, 100), whole(2 / 64, 16), whole(2 / 64, 16, least=1), whole(0, 16, least=1)
    (29, 0, 1, 0)
    """
    return max(math.floor(share * count + ROUNDING), least if share > 0 else 0)


# ---- laws


def normal(rows: int, width: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw from N(0, 1)."""
    return torch.randn(rows, width, generator=generator, dtype=dtype)


def flat(rows: int, width: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw from U(-1, 1): variance 1/3."""
    return torch.rand(rows, width, generator=generator, dtype=dtype).mul_(2).sub_(1)


def flat_matched(rows: int, width: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw from U(-sqrt(3), sqrt(3)): variance 1."""
    return flat(rows, width, generator, dtype).mul_(math.sqrt(3))


def truncated(rows: int, width: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw from N(0, 1) given that it lies within 2: standard deviation 0.8796."""
    edge = math.erf(math.sqrt(2))  # P(|z| < 2)
    return torch.erfinv(flat(rows, width, generator, dtype).mul_(edge)).mul_(math.sqrt(2)).clamp_(-2, 2)


def laplace(rows: int, width: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw from Laplace's law of variance 1: the difference of two exponentials."""
    one, two = (torch.empty(rows, width, dtype=dtype).exponential_(generator=generator) for _ in range(2))
    return one.sub_(two).mul_(math.sqrt(0.5))


def orthogonal(rows: int, width: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw rows (or columns, where there are fewer) of length sqrt(max(rows, width)) at right angles: variance 1.

    Up to ``width`` rows have length sqrt(width); more of them cannot be at right angles, and keep the variance instead.
    """
    tall = torch.randn(max(rows, width), min(rows, width), generator=generator, dtype=dtype)
    q, r = torch.linalg.qr(tall)
    # with QR's signs, directions would not be uniform
    drawn: Tensor = q * torch.sign(r.diagonal()) * math.sqrt(max(rows, width))
    return drawn if rows > width else drawn.T


LAWS: Mapping[Law, tuple[Unit, float | None]] = {
    "adp_normal": (normal, None),
    "uniform": (flat, None),
    "kaiming_uniform": (flat, 6.0),
    "kaiming_normal": (normal, 2.0),
    "xavier_normal": (normal, None),
    "xavier_uniform": (flat_matched, None),
    "trunc_normal": (truncated, None),
    "orthogonal": (orthogonal, None),
    "laplace": (laplace, None),
}
"""Each law's shape, and its gain.

New values are mean + std * shape of the layer as it is, or, with a gain, sqrt(gain / fan_in) * shape.
"""


def draw(
    law: Law,
    shape: tuple[int, int],
    fan: int,
    layer: tuple[float, float],
    scale: float,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Tensor:
    """Return new values.

    Args:
        law: one of LAWS.
        shape: [rows, width].
        fan: numbers that enter one output of the layer.
        layer: its mean and standard deviation.
        scale: factor on the standard deviation, or on that of a law that ignores the layer.
        generator: the source.
        dtype: of the layer.
    """
    unit, gain = LAWS[law]
    mean, spread = layer if gain is None else (0.0, math.sqrt(gain / fan))
    return unit(*shape, generator, dtype).mul_(scale * spread).add_(mean)


# ---- writing


def choose(rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw [count] int64 distinct rows, uniform."""
    return torch.randperm(rows, generator=generator)[:count]


def largest(kernels: Tensor, share: float) -> Tensor:
    """Mark the round(share * width) entries of largest size in each row, [q, width]; of equal ones, the first.

    >>> largest(torch.tensor([[1.0, -3.0, 3.0]]), 1 / 3)
    tensor([[False,  True, False]])
    """
    sizes, count = kernels.abs(), round(share * kernels.shape[1])
    if not count:
        return torch.zeros_like(kernels, dtype=torch.bool)
    least = sizes.topk(count, sorted=False).values.amin(1, keepdim=True)  # [q, 1]
    above, ties = sizes > least, sizes == least
    return above | (ties & (ties.cumsum(1) <= count - above.sum(1, keepdim=True)))


def seeded(rng: Generator) -> torch.Generator:
    """Return a torch generator seeded by a derived numpy one."""
    return torch.Generator().manual_seed(int(rng.integers(2**63)))


def seeded_by(noise: Sequence[float]) -> torch.Generator:
    """Return a torch generator seeded by a client's derived U[0, 1) numbers: 21 bits of each of three."""
    seed = 0
    for number in noise:
        seed = (seed << 21) | int(number * 2**21)
    return torch.Generator().manual_seed(seed)
