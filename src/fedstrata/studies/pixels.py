"""Convert between a model's inputs and pixels, and measure the similarity of two images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedstrata.common.errors import ConfigError
from fedstrata.data.inputs.images import Pictures
from fedstrata.inference.finished_run import Finished

FLOOR = 1e-12  # of a mean squared error: equal images have 120 dB, as JSON has no infinity
READ = 1000  # samples at once


@dataclass(frozen=True, eq=False)
class Pixels:
    """The map between pixels in [0, 1] and a model's inputs: (pixel - mean) / std.

    Attributes:
        mean, std: [C, 1, 1], in units of [0, 1] pixels.
    """

    mean: Tensor
    std: Tensor

    def restore(self, x: Tensor) -> Tensor:
        """Convert inputs [..., C, H, W] to pixels, not clipped."""
        return x * self.std + self.mean

    def normal(self, pixels: Tensor) -> Tensor:
        """Convert pixels [..., C, H, W] to inputs."""
        return (pixels - self.mean) / self.std

    def inside(self, x: Tensor) -> Tensor:
        """Clip inputs to those of pixels in [0, 1]."""
        return torch.maximum(torch.minimum(x, self.normal(torch.ones(()))), self.normal(torch.zeros(())))


def pixels_of(run: Finished, title: str) -> Pixels:
    """Return how a run's images were normalised.

    Raises:
        ConfigError: no images, or images whose normalisation is unknown.
    """
    federation = run.federation
    task = federation.task
    if len(task.shape) != 3 or task.shape[0] not in (1, 3) or task.vocabulary:
        raise ConfigError(
            f"a study of {title} needs images, grey or in colours, and samples of {federation.name} have the shape"
            f" {task.shape}."
        )
    if isinstance(federation.preprocessor, Pictures):
        mean, std = (
            torch.tensor(v, dtype=torch.float64)[:, None, None].float()
            for v in (federation.preprocessor.mean, federation.preprocessor.std)
        )
        return Pixels(mean, std)
    first = federation.train.take(torch.arange(min(READ, len(federation.train))))
    if float(first.min()) < 0 or float(first.max()) > 1:
        raise ConfigError(
            f"{federation.name} holds floats from {float(first.min()):g} to {float(first.max()):g}, and a study of"
            f" {title} must know how they map to pixels; give images as uint8, or as floats in [0, 1]."
        )
    return Pixels(torch.zeros(task.shape[0], 1, 1), torch.ones(task.shape[0], 1, 1))


def psnr(image: Tensor, truth: Tensor) -> float:
    """Compute the peak signal-to-noise ratio (dB) of images in [0, 1]: -10 log10 of mean squared error; at most 120.

    >>> psnr(torch.full((1, 2, 2), 0.5), torch.full((1, 2, 2), 0.6))
    20.0
    """
    error = float((image.double() - truth.double()).square().mean())
    return round(-10 * math.log10(max(error, FLOOR)), 4)


def ssim(image: Tensor, truth: Tensor, *, window: int = 11, sigma: float = 1.5) -> float:
    """Compute the structural similarity of two images [C, H, W] in [0, 1], at most 1.

    It is the mean over channels and all windows inside the image. The window is a Gaussian of 11 x 11 pixels, smaller
    (and odd) for smaller images.

    Source: Wang et al. 2004, "Image Quality Assessment: From Error Visibility to Structural Similarity": eq. 13 with
    K1 = 0.01, K2 = 0.03, L = 1.

    >>> ssim(torch.ones(1, 16, 16), torch.ones(1, 16, 16))
    1.0
    """
    size = min(window, *image.shape[1:])
    size -= 1 - size % 2
    at = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    one = torch.exp(-at.square() / (2 * sigma**2))
    kernel = torch.outer(one, one)[None, None] / one.sum() ** 2

    def mean(z: Tensor) -> Tensor:
        return functional.conv2d(z, kernel)

    a, b = image.double()[:, None], truth.double()[:, None]  # [C, 1, H, W]
    ma, mb = mean(a), mean(b)
    va, vb, both = mean(a * a) - ma * ma, mean(b * b) - mb * mb, mean(a * b) - ma * mb
    c1, c2 = 0.01**2, 0.03**2
    index = (2 * ma * mb + c1) * (2 * both + c2) / ((ma * ma + mb * mb + c1) * (va + vb + c2))
    return round(float(index.mean()), 6)
