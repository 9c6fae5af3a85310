"""Augment images as tensors: geometry that depends on given uniforms only, seeded for each client, round and sample.

Written in call syntax and applied from left to right: ``"crop(pad=4) + flip"``. FedPart's CIFAR-100 recipe is
``"flip + rotate(degrees=15) + crop(pad=4, fill=zero)"``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F  # the usual name  # noqa: N812
from torch import Tensor

from fedstrata.common.call_syntax import bind, parse_calls
from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.suggest import suggestion

Fill = Literal["black", "zero"]


class Move(Protocol):
    """An augmentation: x [B, C, H, W], u [B, draws] in [0, 1), dark [C, 1, 1] the value of black -> [B, C, H, W]."""

    draws: ClassVar[int]

    def apply(self, x: Tensor, u: Tensor, dark: Tensor) -> Tensor:
        """Move the pixels of a batch."""
        ...


@dataclass(frozen=True)
class Augment:
    """A chain of moves.

    Args:
        moves: applied from left to right.
        dark: [C] the value of a black pixel after normalisation.
    """

    moves: tuple[Move, ...]
    dark: tuple[float, ...]

    @property
    def draws(self) -> int:
        """Number of uniforms that one sample needs."""
        return sum(move.draws for move in self.moves)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Augment a batch.

        Args:
            x: [B, C, H, W] normalised float32.
            u: [B, draws] in [0, 1).
        Raises:
            DataError: shapes that do not match.
        """
        if x.ndim != 4 or u.shape != (len(x), self.draws):
            raise DataError(
                f"augmentation got x {tuple(x.shape)} and u {tuple(u.shape)}; they must be images [B, C, H, W] and u"
                " [B,"
                f" {self.draws}]."
            )
        dark = torch.tensor(self.dark, dtype=x.dtype)[:, None, None]
        start = 0
        for move in self.moves:
            x = move.apply(x, u[:, start : start + move.draws], dark)
            start += move.draws
        return x


def _gather(x: Tensor, rows: Tensor, columns: Tensor, fill: Tensor) -> Tensor:
    """Read pixels [B, C, H, W] at integer rows and columns [B, H, W]; ``fill`` [C, 1, 1] outside."""
    size, channels, height, width = x.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    flat = (
        (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).reshape(size, 1, -1).expand(-1, channels, -1)
    )
    read = x.reshape(size, channels, -1).gather(2, flat).reshape(x.shape)
    return torch.where(inside[:, None], read, fill)


def _grid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column numbers, [1, H, 1] and [1, 1, W]."""
    return torch.arange(x.shape[2])[None, :, None], torch.arange(x.shape[3])[None, None, :]


@dataclass(frozen=True)
class Flip:
    """Left-right mirror of a share of the samples.

    Args:
        p: share, in [0, 1].
    """

    p: float = 0.5
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ConfigError(f"augment flip: p is {self.p}; it is a share of samples, in [0, 1].")

    def apply(self, x: Tensor, u: Tensor, dark: Tensor) -> Tensor:
        """See :class:`Move`."""
        return torch.where((u[:, 0] < self.p)[:, None, None, None], x.flip(3), x)


@dataclass(frozen=True)
class Crop:
    """Random crop to the same size after padding.

    Args:
        pad: pixels on every side, at least 1; the shift is uniform over 2 * pad + 1 positions in each direction.
        fill: the padding: "black" (padding before normalisation), or "zero" in normalised units (FedPart, which pads
            after it).
    """

    pad: int = 4
    fill: Fill = "black"
    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.pad < 1:
            raise ConfigError(f"augment crop: pad is {self.pad}; it is a number of pixels, at least 1.")

    def apply(self, x: Tensor, u: Tensor, dark: Tensor) -> Tensor:
        """See :class:`Move`."""
        shift = (u * (2 * self.pad + 1)).long().clamp(
            max=2 * self.pad
        ) - self.pad  # [B, 2]; the clamp is for u rounded up to 1
        rows, columns = _grid(x)
        rows = (rows + shift[:, 0, None, None]).expand(-1, -1, x.shape[3])  # [B, H, W]
        columns = (columns + shift[:, 1, None, None]).expand(-1, x.shape[2], -1)
        return _gather(x, rows, columns, dark if self.fill == "black" else torch.zeros_like(dark))


@dataclass(frozen=True)
class Rotate:
    """Rotation about the centre by a uniform angle, nearest pixel, same size.

    Args:
        degrees: the angle is uniform in [-degrees, degrees]; in (0, 180].
        fill: pixels from outside: "black", or "zero" in normalised units.
    """

    degrees: float = 15.0
    fill: Fill = "black"
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 < self.degrees <= 180:
            raise ConfigError(f"augment rotate: degrees is {self.degrees}; it is in (0, 180], 15 in FedPart.")

    def apply(self, x: Tensor, u: Tensor, dark: Tensor) -> Tensor:
        """See :class:`Move`."""
        angle = (2 * u[:, 0].double() - 1) * math.radians(
            self.degrees
        )  # [B]; double: the nearest pixel then does not depend on float32 rounding
        cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
        rows, columns = _grid(x)
        middle_row, middle_column = (x.shape[2] - 1) / 2, (x.shape[3] - 1) / 2
        down, right = rows - middle_row, columns - middle_column
        source_row = torch.round(cos * down + sin * right + middle_row).long()
        source_column = torch.round(cos * right - sin * down + middle_column).long()
        return _gather(x, source_row, source_column, dark if self.fill == "black" else torch.zeros_like(dark))


@dataclass(frozen=True)
class ResizedCrop:
    """Random-resized crop: a box of random area and shape, bilinearly resized to the whole picture.

    Area share uniform in [low, high]; log shape (width / height) uniform in [log ratio_low, log ratio_high]; a side
    longer than the picture is cut to it (torchvision redraws up to ten times instead, which a fixed number of uniforms
    does not allow); the position is uniform.

    Args:
        low: smallest area share, in (0, high].
        high: largest area share, at most 1.
        ratio: widest shape, at least 1; the narrowest is 1 / ratio.
    """

    low: float = 0.08
    high: float = 1.0
    ratio: float = 4 / 3
    draws: ClassVar[int] = 4

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 1 or self.ratio < 1:
            raise ConfigError(
                f"augment resized_crop: low {self.low}, high {self.high}, ratio {self.ratio}; write 0 < low <= high <="
                " 1 and ratio >= 1."
            )

    def apply(self, x: Tensor, u: Tensor, dark: Tensor) -> Tensor:
        """See :class:`Move`."""
        height, width = x.shape[2:]
        area = self.low + u[:, 0] * (self.high - self.low)
        shape = torch.exp((2 * u[:, 1] - 1) * math.log(self.ratio))
        wide = torch.sqrt(area * shape * height / width).clamp(max=1.0)  # [B], as a share of the width
        tall = torch.sqrt(area / shape * width / height).clamp(max=1.0)
        left, top = (2 * u[:, 2] - 1) * (1 - wide), (2 * u[:, 3] - 1) * (1 - tall)  # centre of the box, in [-1, 1]
        zero = torch.zeros_like(wide)
        theta = torch.stack([torch.stack([wide, zero, left], 1), torch.stack([zero, tall, top], 1)], 1)  # [B, 2, 3]
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


MOVES: dict[str, type[Move]] = {"flip": Flip, "crop": Crop, "rotate": Rotate, "resized_crop": ResizedCrop}


def parse_moves(text: str | None) -> tuple[Move, ...]:
    """Read ``"crop(pad=4) + flip"``; None and "none" mean no move.

    Raises:
        ConfigError: an unknown move or setting.
    """
    if text is None or text.strip() in ("", "none"):
        return ()
    moves: list[Move] = []
    for call in parse_calls(text):
        if call.name not in MOVES:
            raise ConfigError(f"augment has no {call.name!r}; it has {', '.join(MOVES)}.{suggestion(call.name, MOVES)}")
        moves.append(bind(call, MOVES[call.name], what="augment"))
    return tuple(moves)


def parse_augment(text: str | None, dark: tuple[float, ...], shape: tuple[int, ...]) -> Augment | None:
    """Read the augmentation for these samples, or None; see :func:`parse_moves`.

    Args:
        text: what the user wrote.
        dark: [C] value of black after normalisation; () where samples are not images.
        shape: one sample's shape.
    Raises:
        ConfigError: an unknown move or setting.
        DataError: augmentation of samples that are not images.
    """
    moves = parse_moves(text)
    if not moves:
        return None
    if len(shape) != 3 or not dark:
        raise DataError(
            f"augment={text!r} moves pixels, and a sample of these data has shape {shape}; leave augment out."
        )
    return Augment(moves, dark)
