"""Optimise images that excite channels of a layer, by their pixels or by the phase of a fixed spectrum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedstrata.studies.fourier import crops, image_of, random_phase
from fedstrata.studies.pixels import Pixels

Crop = Literal["none", "value", "norm"]


@dataclass(frozen=True, eq=False)
class Probe:
    """Reads the output of one layer while images run through a model.

    Attributes:
        model: in evaluation mode.
        layer: the module whose output counts, before any subsequent norm or activation.
        channels: of the layer; image k excites channels[k].
    """

    model: nn.Module
    layer: nn.Module
    channels: Sequence[int]

    @contextmanager
    def outputs(self) -> Iterator[list[Tensor]]:
        """Collect the outputs of the layer, one for each forward pass."""
        collected: list[Tensor] = []
        handle = self.layer.register_forward_hook(lambda _module, _inputs, output: collected.append(output))
        try:
            yield collected
        finally:
            handle.remove()

    def activation(self, x: Tensor) -> Tensor:
        """Compute [B] mean activations, each of the image's channel.

        B is a multiple of the number of channels, in their order.
        """
        with self.outputs() as outputs:
            self.model(x)
        channels = torch.tensor(list(self.channels)).repeat(len(x) // len(self.channels))
        chosen = outputs[-1][torch.arange(len(x)), channels]  # [B, ...]
        return chosen.flatten(1).mean(1) if chosen.dim() > 1 else chosen


@dataclass(frozen=True)
class Regularisation:
    """How pixels are kept smooth during ascent.

    Attributes:
        tv: weight of total variation.
        blur: sigma of a Gaussian in pixels, 0 for none.
        crop: what is set to 0, see :func:`cropped`; share: how much of it.
        every: steps between two blurs or crops.
        decay: Adam's weight decay.
    """

    tv: float
    blur: float
    crop: Crop
    share: float
    every: int
    decay: float


@dataclass(frozen=True, eq=False)
class Ascent:
    """The start and the end of an ascent.

    Attributes:
        first, last: [n] activation of the first and of the last image, as the model reads it; shown: of the picture,
            which is clipped to [0, 1].
        raw: [n, C, H, W] pixels, not clipped.
    """

    first: Tensor
    last: Tensor
    shown: Tensor
    raw: Tensor

    @property
    def pictures(self) -> Tensor:
        """Return [n, C, H, W] pixels in [0, 1]."""
        return self.raw.clamp(0, 1)


def total_variation(x: Tensor) -> Tensor:
    """Compute [B] the total variation of images [B, C, H, W]: 2 (mean squared vertical + horizontal differences)."""
    down = (x[:, :, 1:] - x[:, :, :-1]).square().flatten(1).mean(1)
    across = (x[..., 1:] - x[..., :-1]).square().flatten(1).mean(1)
    return 2 * (down + across)


def blurred(x: Tensor, sigma: float) -> Tensor:
    """Blur images [B, C, H, W] by a Gaussian of this sigma in pixels; borders are repeated."""
    reach = max(1, round(4 * sigma))
    one = torch.exp(-torch.arange(-reach, reach + 1).float().square() / (2 * sigma**2))
    kernel = torch.outer(one, one)[None, None] / one.sum() ** 2
    flat = functional.pad(x.flatten(0, 1)[:, None], (reach,) * 4, mode="replicate")
    return functional.conv2d(flat, kernel).reshape(x.shape)


def cropped(x: Tensor, how: Crop, share: float) -> Tensor:
    """Set the smallest ``share`` of the numbers (by value) or pixels (by norm over channels) of [B, C, H, W] to 0."""
    size = x.abs() if how == "value" else x.norm(dim=1, keepdim=True).expand_as(x)
    limit = torch.quantile(size.flatten(1), share, dim=1)[:, None, None, None]
    return torch.where(size < limit, 0.0, x)


def ascend_pixels(
    probe: Probe, start: Tensor, pixels: Pixels, steps: int, lr: float, regularisation: Regularisation
) -> Ascent:
    """Maximise each channel's mean activation minus weighted total variation by Adam on images.

    Blur and crop change the image that Adam optimises. Images are independent of each other.

    Args:
        probe: the layer and its channels.
        start: [n, C, H, W] inputs, one for each channel; not changed.
        pixels: how images are normalised.
        steps: of Adam.
        lr: of Adam.
        regularisation: how pixels are kept smooth.
    """
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=lr, weight_decay=regularisation.decay)
    for step in range(1, steps + 1):
        loss = (regularisation.tv * total_variation(x) - probe.activation(x)).sum()
        (x.grad,) = torch.autograd.grad(loss, [x])
        optimizer.step()
        if step % regularisation.every == 0:
            with torch.no_grad():
                if regularisation.blur:
                    x.copy_(blurred(x, regularisation.blur))
                if regularisation.crop != "none":
                    x.copy_(cropped(x, regularisation.crop, regularisation.share))
    return _ascent(probe, start, x.detach(), pixels)


@dataclass(frozen=True)
class CropSchedule:
    """MACO's crops: ``count`` for each step, with sides from ``first`` to ``last`` of the image's, and ``noise``."""

    count: int
    first: float
    last: float
    noise: float


def ascend_phase(
    probe: Probe,
    spectrum: Tensor,
    pixels: Pixels,
    steps: int,
    lr: float,
    schedule: CropSchedule,
    generator: torch.Generator,
) -> Ascent:
    """Maximise the mean activation over noisy crops by Nadam on the phase of images with fixed Fourier magnitude.

    Source: Fel et al. 2023, "Unlocking Feature Visualization for Deeper Networks with MAgnitude Constrained
    Optimization".
    """
    n = len(probe.channels)
    phase = random_phase(torch.Size((n, *spectrum.shape)), generator).requires_grad_()
    start = pixels.normal(image_of(spectrum, phase.detach()))
    optimizer = torch.optim.NAdam([phase], lr=lr)
    for step in range(steps):
        size = schedule.first + (schedule.last - schedule.first) * step / max(steps - 1, 1)
        parts = crops(image_of(spectrum, phase), schedule.count, size, generator)
        if schedule.noise:
            uniform = torch.rand(parts.shape, generator=generator) - 0.5
            parts = parts + schedule.noise * (torch.randn(parts.shape, generator=generator) + uniform)
        loss = -probe.activation(pixels.normal(parts)).sum() / schedule.count
        (phase.grad,) = torch.autograd.grad(loss, [phase])
        optimizer.step()
    raw = image_of(spectrum, phase.detach())
    return replace(_ascent(probe, start, pixels.normal(raw), pixels), raw=raw)


def _ascent(probe: Probe, start: Tensor, end: Tensor, pixels: Pixels) -> Ascent:
    """Compute the activations at both ends."""
    raw = pixels.restore(end)
    activation: Callable[[Tensor], Tensor] = torch.no_grad()(probe.activation)
    return Ascent(activation(start), activation(end), activation(pixels.normal(raw.clamp(0, 1))), raw)
