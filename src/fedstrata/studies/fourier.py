"""Build images with a prescribed Fourier magnitude and a free phase, and MACO's crops of them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional


def magnitude(batches: Iterable[Tensor]) -> Tensor:
    """Compute the mean magnitude of the 2D Fourier transform over images, by channel.

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
    """Return the part of phases [..., H, W] that changes sign with the frequency, as those of a real image do.

    0 at frequencies that equal their mirror.
    """
    mirrored = phase.flip(-2, -1).roll((1, 1), (-2, -1))
    return (phase - mirrored) / 2


def image_of(spectrum: Tensor, phase: Tensor) -> Tensor:
    """Build real images [..., C, H, W] of magnitude [C, H, W] from the odd part of phases [..., C, H, W]."""
    image: Tensor = torch.fft.ifft2(torch.polar(spectrum.expand_as(phase), odd(phase))).real
    return image


def crops(image: Tensor, count: int, size: float, generator: torch.Generator) -> Tensor:
    """Cut square crops of images and resize them to the size of the image; 0 outside of the image.

    Args:
        image: [B, C, H, W].
        count: crops of each image; all images are cut alike.
        size: mean side of a crop as a share of the image's; sides are N(size, 0.05), within [0.05, 1], centres N(0.5,
            0.15).
        generator: of positions and sides.
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
    """Draw phases U[-pi, pi)."""
    return (2 * torch.rand(shape, generator=generator) - 1) * math.pi
