"""Images that excite channels of a layer: gradient ascent in pixels, and on the phase of a fixed spectrum."""

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
    """One layer of a model, looked at while images run through the model.

    Attributes:
        model: in evaluation mode.
        layer: the module whose output counts, before any norm or activation behind it.
        channels: of the layer; image k is to excite channels[k].
    """

    model: nn.Module
    layer: nn.Module
    channels: Sequence[int]

    @contextmanager
    def outputs(self) -> Iterator[list[Tensor]]:
        """What the layer puts out, pass by pass, while this is open."""
        found: list[Tensor] = []
        handle = self.layer.register_forward_hook(lambda _module, _inputs, output: found.append(output))
        try:
            yield found
        finally:
            handle.remove()

    def activation(self, x: Tensor) -> Tensor:
        """[B] mean activation of each image's own channel.

        B is a multiple of the number of channels, in their order.
        """
        with self.outputs() as found:
            self.model(x)
        output = found[-1]  # [B, F, ...]
        own = torch.tensor(list(self.channels)).repeat(len(x) // len(self.channels))
        return (
            output[torch.arange(len(x)), own].flatten(1).mean(1)
            if output.dim() > 2
            else output[torch.arange(len(x)), own]
        )


@dataclass(frozen=True)
class Ways:
    """How pixels are kept smooth while they climb.

    Attributes:
        tv: weight of total variation.
        blur: sigma of a Gaussian in pixels, 0 for none; crop: what is set to 0, see :func:`cropped`; share: of it.
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
class Climb:
    """Where an ascent began and ended.

    Attributes:
        first, last: [n] activation of the start and of the last image, as the model reads it; shown: of the picture,
            which is cut to [0, 1].
        raw: [n, C, H, W] pixels, not cut.
    """

    first: Tensor
    last: Tensor
    shown: Tensor
    raw: Tensor

    @property
    def pictures(self) -> Tensor:
        """[n, C, H, W] in [0, 1]."""
        return self.raw.clamp(0, 1)


def total_variation(x: Tensor) -> Tensor:
    """[B] for images [B, C, H, W]: 2 (sum of squared vertical differences / (C (H-1) W) + sum of squared horizontal
    ones / (C H (W-1))).
    """
    down = (x[:, :, 1:] - x[:, :, :-1]).square().flatten(1).mean(1)
    across = (x[..., 1:] - x[..., :-1]).square().flatten(1).mean(1)
    return 2 * (down + across)


def blurred(x: Tensor, sigma: float) -> Tensor:
    """Images [B, C, H, W] after a Gaussian of this sigma in pixels, borders repeated."""
    reach = max(1, round(4 * sigma))
    one = torch.exp(-torch.arange(-reach, reach + 1).float().square() / (2 * sigma**2))
    kernel = torch.outer(one, one)[None, None] / one.sum() ** 2
    flat = functional.pad(x.flatten(0, 1)[:, None], (reach,) * 4, mode="replicate")
    return functional.conv2d(flat, kernel).reshape(x.shape)


def cropped(x: Tensor, how: Crop, share: float) -> Tensor:
    """Images [B, C, H, W] with the least ``share`` of their numbers (by absolute value), or of their pixels (by norm
    over channels), set to 0.
    """
    size = x.abs() if how == "value" else x.norm(dim=1, keepdim=True).expand_as(x)
    limit = torch.quantile(size.flatten(1), share, dim=1)[:, None, None, None]
    return torch.where(size < limit, 0.0, x)


def in_pixels(probe: Probe, start: Tensor, pixels: Pixels, steps: int, lr: float, ways: Ways) -> Climb:
    """Adam on images for each channel's mean activation less weighted total variation.

    Blur and crop write into the image that Adam moves. Images do not touch each other.

    Args:
        probe: the layer and its channels.
        start: [n, C, H, W] inputs, one a channel; it is not changed.
        pixels: how images are normalised.
        steps: of Adam.
        lr: of Adam.
        ways: how pixels are kept smooth.
    """
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=lr, weight_decay=ways.decay)
    for step in range(1, steps + 1):
        loss = (ways.tv * total_variation(x) - probe.activation(x)).sum()
        (x.grad,) = torch.autograd.grad(loss, [x])
        optimizer.step()
        if step % ways.every == 0:
            with torch.no_grad():
                if ways.blur:
                    x.copy_(blurred(x, ways.blur))
                if ways.crop != "none":
                    x.copy_(cropped(x, ways.crop, ways.share))
    return climb(probe, start, x.detach(), pixels)


@dataclass(frozen=True)
class Looks:
    """How MACO looks at an image: ``count`` pieces a step, sides falling from ``first`` to ``last`` of the image's,
    with ``noise`` on them.
    """

    count: int
    first: float
    last: float
    noise: float


def in_phase(
    probe: Probe, spectrum: Tensor, pixels: Pixels, steps: int, lr: float, looks: Looks, generator: torch.Generator
) -> Climb:
    """Nadam on the phase of images whose Fourier magnitude stands still, for the mean activation over noisy crops.

    Source: Fel et al. 2023, "Unlocking Feature Visualization for Deeper Networks with MAgnitude Constrained
        Optimization".
    """
    n = len(probe.channels)
    phase = random_phase(torch.Size((n, *spectrum.shape)), generator).requires_grad_()
    start = pixels.normal(image_of(spectrum, phase.detach()))
    optimizer = torch.optim.NAdam([phase], lr=lr)
    for step in range(steps):
        size = looks.first + (looks.last - looks.first) * step / max(steps - 1, 1)
        parts = crops(image_of(spectrum, phase), looks.count, size, generator)
        if looks.noise:
            even = torch.rand(parts.shape, generator=generator) - 0.5
            parts = parts + looks.noise * (torch.randn(parts.shape, generator=generator) + even)
        loss = -probe.activation(pixels.normal(parts)).sum() / looks.count
        (phase.grad,) = torch.autograd.grad(loss, [phase])
        optimizer.step()
    raw = image_of(spectrum, phase.detach())
    return replace(climb(probe, start, pixels.normal(raw), pixels), raw=raw)


def climb(probe: Probe, start: Tensor, end: Tensor, pixels: Pixels) -> Climb:
    """What the activations are at both ends."""
    raw = pixels.restore(end)
    look: Callable[[Tensor], Tensor] = torch.no_grad()(probe.activation)
    return Climb(look(start), look(end), look(pixels.normal(raw.clamp(0, 1))), raw)
