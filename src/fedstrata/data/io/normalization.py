"""Normalise features: images by the mean and std of each channel, columns by sums that clients report.

Mean and std of images are in units of [0, 1] pixels; :data:`NORMS` names their sources. Columns of tables and series
need training statistics: every client reports counts, sums and sums of squares, never a sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.errors import ConfigError

Norm = Literal["raw", "mnist", "fashion_mnist", "cifar10", "cifar100", "imagenet", "half"]
Channels = tuple[float, ...]
NORMS: dict[str, tuple[Channels, Channels]] = {
    "raw": ((0.0,), (1.0,)),  # pixels in [0, 1]
    "half": ((0.5,), (0.5,)),  # to [-1, 1]
    "mnist": ((0.1307,), (0.3081,)),  # of the training set; the PyTorch example's figures
    "fashion_mnist": ((0.2860,), (0.3530,)),  # of the training set
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # FedPhoenix's launcher
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),  # FedFN's and FedPart's
    "imagenet": (
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
    ),  # ImageNet training set; FedFN uses them for CIFAR-10 too
}
"""Name -> (mean, std) of each channel, in units of [0, 1] pixels."""

Floats = NDArray[np.float64]
CONSTANT = 1e-13  # a variance below this share of the squared mean is rounding noise


def channel_norm(norm: str, channels: int) -> tuple[Channels, Channels]:
    """Look up mean and std, each [channels], in :data:`NORMS`; a row of one number holds for every channel.

    Raises:
        ConfigError: a row of three channels for images of another number.
    """
    mean, std = NORMS[norm]
    if len(mean) == 1:
        return mean * channels, std * channels
    if len(mean) != channels:
        raise ConfigError(
            f"norm={norm} is for {len(mean)} channels, and these images have {channels}; use raw, half, mnist or"
            " fashion_mnist."
        )
    return mean, std


def black_value(mean: Channels, std: Channels) -> Channels:
    """Return the value of a black pixel after normalisation, for each channel."""
    return tuple(-m / s for m, s in zip(mean, std, strict=True))


def affine(mean: Channels, std: Channels) -> tuple[Tensor, Tensor]:
    """Return scale and shift, each [C, 1, 1] float32, that turn a byte into (byte / 255 - mean) / std."""
    centre, width = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    return (1 / (255 * width)).float()[:, None, None], (-centre / width).float()[:, None, None]


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums that one client reports for each of K columns; reports add up.

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
        """Sum a client's training rows [n, K]; NaN is a missing value and does not count."""
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
        """Compute mean and std from the clients' reports, added in long double and in client order."""
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
        """Return (values - mean) / std, [N, K]; missing values and constant columns become 0."""
        scaled = (values - self.mean) / self.std
        return np.where(np.isnan(scaled) | self.constant, 0.0, scaled)
