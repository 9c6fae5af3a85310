"""Normalisation from what clients may tell: their counts, sums and sums of squares, never a sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CONSTANT = 1e-13  # a variance below this share of the squared mean is rounding noise


@dataclass(frozen=True, eq=False)
class Sums:
    """What one client reports for each of K columns, and what such reports add up to.

    Attributes:
        count: [K] values that are not missing.
        total: [K] their sum.
        squares: [K] the sum of their squares.
    """

    count: Floats
    total: Floats
    squares: Floats

    @classmethod
    def of(cls, values: Floats) -> Sums:
        """Of a client's training rows [n, K]; NaN is a missing value and does not count."""
        known = ~np.isnan(values)
        filled = np.where(known, values, 0.0)
        return cls(known.sum(0).astype(np.float64), filled.sum(0), (filled * filled).sum(0))

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.total + other.total, self.squares + other.squares)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and standard deviation of K columns; std 1 where a column is constant.

    Attributes:
        mean: [K].
        std: [K] positive.
        constant: [K] bool, columns without spread: they become 0.
    """

    mean: Floats
    std: Floats
    constant: NDArray[np.bool_]

    @classmethod
    def from_sums(cls, parts: Iterable[Sums], columns: int) -> Scaling:
        """From the clients' reports, added in long double and in client order."""
        count, total, squares = (np.zeros(columns, dtype=np.longdouble) for _ in range(3))
        for part in parts:
            count, total, squares = count + part.count, total + part.total, squares + part.squares
        share = np.maximum(count, 1)
        mean = total / share
        variance = squares / share - mean * mean
        constant = variance <= CONSTANT * np.maximum(mean * mean, np.finfo(np.float64).tiny)
        std = np.sqrt(np.where(constant, 1, variance))
        return cls(mean.astype(np.float64), std.astype(np.float64), constant)

    def apply(self, values: Floats) -> Floats:
        """(values - mean) / std for [N, K]; missing values become the mean, that is 0; so do constant columns."""
        scaled = (values - self.mean) / self.std
        return np.where(np.isnan(scaled) | self.constant, 0.0, scaled)
