"""Images with a prescribed Fourier magnitude, of which only the phase is free; and MACO's crops of them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional


def magnitude(batches: Iterable[Tensor]) -> Tensor:
    """Mean magnitude of the 2D Fourier transform over images, by channel.

    Args:
        batches: pixels [B, C, H, W].
    Returns:
        [C, H, W] float32, in units of the transform without a factor.
    """
    total, count = torch.zeros(()), 0
    for images in batches:
        total = total + torch.fft.fft2(images.double()).abs().sum(0)
        count += len(images)
    assert count, "at least one image"
    return (total / count).float()


def odd(phase: Tensor) -> Tensor:
    """The part of phases [..., H, W] that changes sign with the frequency, as those of a real image do.

    0 where a frequency is its own mirror.
    """
    mirrored = phase.flip(-2, -1).roll((1, 1), (-2, -1))
    return (phase - mirrored) / 2


def image_of(spectrum: Tensor, phase: Tensor) -> Tensor:
    """Real images [..., C, H, W] with exactly this magnitude [C, H, W], from any phases [..., C, H, W], of which the
    odd part counts.
    """
    image: Tensor = torch.fft.ifft2(torch.polar(spectrum.expand_as(phase), odd(phase))).real
    return image


def crops(image: Tensor, count: int, size: float, generator: torch.Generator) -> Tensor:
    """Square pieces of images, stretched to the size of the whole, 0 where a piece leaves it.

    Args:
        image: [B, C, H, W].
        count: pieces of each image; all images are cut alike.
        size: mean side of a piece as a share of the image's; sides are N(size, 0.05), within [0.05, 1], centres N(0.5,
            0.15).
        generator: of places and sides.
    Returns:
        [count * B, C, H, W].
    """
    centre = 0.15 * torch.randn(count, 2, generator=generator)  # from the middle, in shares
    side = (size + 0.05 * torch.randn(count, generator=generator)).clamp(0.05, 1)
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = side
    theta[:, :, 2] = 2 * centre
    parts = len(image)
    grid = functional.affine_grid(theta, [count, *image.shape[1:]], align_corners=False).repeat_interleave(parts, 0)
    return functional.grid_sample(image.repeat(count, 1, 1, 1), grid, align_corners=False)


def random_phase(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Phases U[-pi, pi)."""
    return (2 * torch.rand(shape, generator=generator) - 1) * math.pi
