"""What the models share: norm layers by name, dropout from the derived stream, initialisation from one generator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedstrata.errors import ConfigError
from fedstrata.net import Dropout

Norm: TypeAlias = Literal["batch", "group", "none"]
ConvInit: TypeAlias = Literal["torch", "fan_out"]


class Model(nn.Module):
    """A module whose classifier has a known name and that can be started from one generator.

    It is built on the meta device (no memory, no random numbers); :meth:`start` then fills every parameter and buffer.
    """

    head_name = "head"

    def start(self, generator: torch.Generator) -> None:
        """Fill all parameters in definition order, drawing from ``generator`` only."""
        fill(self, generator)


@dataclass(frozen=True)
class Norms:
    """Makes the norm layers of one model, so that names stay the same whichever norm is chosen."""

    model: str
    kind: Norm
    groups: int = 32  # for kind "group"
    track: bool = True  # for kind "batch": keep running statistics; without them batches are normalised by themselves in evaluation too

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise ConfigError(f"{self.model}(groups={self.groups}): a group norm needs at least 1 group.")

    @property
    def bias(self) -> bool:
        """Whether a convolution needs a bias of its own: a norm's shift serves as one."""
        return self.kind == "none"

    def images(self, channels: int) -> nn.Module:
        """The norm after a convolution with ``channels`` outputs."""
        return nn.BatchNorm2d(channels, track_running_stats=self.track) if self.kind == "batch" else self._other(channels)

    def rows(self, features: int) -> nn.Module:
        """The norm after a linear layer with ``features`` outputs."""
        return nn.BatchNorm1d(features, track_running_stats=self.track) if self.kind == "batch" else self._other(features)

    def _other(self, channels: int) -> nn.Module:
        if self.kind == "none":
            return nn.Identity()
        if channels % self.groups:
            fits = [str(g) for g in range(1, min(channels, 64) + 1) if channels % g == 0]
            raise ConfigError(
                f"{self.model}: {channels} channels cannot be split into {self.groups} groups of equal size. Set groups to one of {', '.join(fits)}."
            )
        return nn.GroupNorm(self.groups, channels)


class ChannelDropout(nn.Module):
    """Dropout of whole channels: [B, C, ...] loses C-slices. One uniform number per sample and channel."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.mask = Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones_like(x[(slice(None), slice(None)) + (slice(0, 1),) * (x.dim() - 2)])  # [B, C, 1, ...]
        return x * self.mask(ones) if self.training else x


def dropout(p: float, model: str, *, setting: str = "dropout", channels: bool = False) -> nn.Module:
    """Our dropout layer, or the identity for p = 0.

    Raises:
        ConfigError: p outside [0, 1).
    """
    if not 0 <= p < 1:
        raise ConfigError(f"{model}({setting}={p}): dropout is a share of entries, in [0, 1).")
    if p == 0:
        return nn.Identity()
    return ChannelDropout(p) if channels else Dropout(p)


def fill(module: nn.Module, generator: torch.Generator, conv: ConvInit = "torch") -> None:
    """Fill every known layer below ``module`` in definition order.

    Args:
        module: holds Conv2d, Linear, Embedding and norm layers; parameters of any other module are its own business.
        generator: the only source of random numbers.
        conv: "torch" (uniform, PyTorch's default) or "fan_out" (normal, He et al. 2015, biases 0: torchvision's and FedPart's ResNets, FedFN's VGG).
    """
    for part in module.modules():
        match part:
            case nn.Conv2d():
                if conv == "torch":
                    fill_affine(part.weight, part.bias, generator)
                else:
                    nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu", generator=generator)
                    if part.bias is not None:
                        nn.init.zeros_(part.bias)
            case nn.Linear():
                fill_affine(part.weight, part.bias, generator)
            case nn.Embedding():
                nn.init.normal_(part.weight, generator=generator)
            case nn.BatchNorm1d() | nn.BatchNorm2d():
                part.reset_parameters()  # ones, zeros and the running statistics: nothing random
            case nn.GroupNorm() | nn.LayerNorm():
                part.reset_parameters()


def fill_affine(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
    """PyTorch's default for linear and convolution layers: U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weight and bias."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    if bias is not None:
        bound = 1 / math.sqrt(weight[0].numel())
        nn.init.uniform_(bias, -bound, bound, generator=generator)
