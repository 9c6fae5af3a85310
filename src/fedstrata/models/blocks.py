"""Blocks that models share: norm layers by name, seeded dropout, initialisation from one generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedstrata.common.errors import ConfigError
from fedstrata.core.network import Dropout

Norm: TypeAlias = Literal["batch", "group", "none"]
ConvInit: TypeAlias = Literal["torch", "fan_out"]
Layer: TypeAlias = Callable[[Tensor], Tensor]  # the type of a submodule that is only called


class Model(nn.Module):
    """A module whose head has a known name and that is initialised from one generator.

    It is built on the meta device (no memory, no random numbers); :meth:`start` then fills every parameter and buffer.
    """

    head_name = "head"
    channels_last = False
    """Whether image batches have channels last in memory, which makes convolutions of this model faster."""

    head: Layer

    def start(self, generator: torch.Generator) -> None:
        """Fill all parameters in definition order, drawing from ``generator`` only."""
        fill(self, generator)


@dataclass(frozen=True)
class Norms:
    """Builds the norm layers of one model; names do not depend on the chosen norm.

    Attributes:
        model: the model's name, for messages.
        kind: batch, group or none.
        groups: for kind "group".
        track: for kind "batch": keep running statistics; without them a batch is normalised by itself in evaluation
            too.
    """

    model: str
    kind: Norm
    groups: int = 32
    track: bool = True

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise ConfigError(f"{self.model}(groups={self.groups}): a group norm needs at least 1 group.")

    @property
    def bias(self) -> bool:
        """Whether a convolution needs a bias; the shift of a norm replaces it."""
        return self.kind == "none"

    def images(self, channels: int) -> nn.Module:
        """Build the norm after a convolution with ``channels`` outputs."""
        return (
            nn.BatchNorm2d(channels, track_running_stats=self.track) if self.kind == "batch" else self._other(channels)
        )

    def rows(self, features: int) -> nn.Module:
        """Build the norm after a linear layer with ``features`` outputs."""
        return (
            nn.BatchNorm1d(features, track_running_stats=self.track) if self.kind == "batch" else self._other(features)
        )

    def _other(self, channels: int) -> nn.Module:
        if self.kind == "none":
            return nn.Identity()
        if channels % self.groups:
            fits = ", ".join(str(g) for g in range(1, min(channels, 64) + 1) if channels % g == 0)
            raise ConfigError(
                f"{self.model}: {channels} channels do not split into {self.groups} equal groups. Set groups to one of"
                f" {fits}."
            )
        return nn.GroupNorm(self.groups, channels)


def max_pool(x: Tensor, size: int, stride: int, padding: int = 0, *, channels_last: bool) -> Tensor:
    """Max-pool by torch's path for channels last, much faster on a CPU: [B, C, H, W] -> [B, C, H', W'].

    Args:
        x: images.
        size: of the windows.
        stride: of the windows.
        padding: of the windows.
        channels_last: the memory format of the neighbouring layers.
    """
    pooled = functional.max_pool2d(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), size, stride, padding)
    return pooled if channels_last else pooled.contiguous()


class Conv(nn.Module):
    """Convolution with bias, norm, ReLU.

    Then a 2x2 max-pool and dropout where asked: [B, C, H, W] -> [B, F, H', W'].
    """

    channels_last = False
    norm: Layer
    drop: Layer

    def __init__(
        self,
        inputs: int,
        width: int,
        norms: Norms,
        *,
        kernel: int = 3,
        padding: int = 1,
        pool: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, kernel, padding=padding, bias=bias)
        self.norm = norms.images(width)
        self.pool = pool
        self.drop = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, F, H', W']."""
        x = functional.relu(self.norm(self.conv(x)))
        return self.drop(max_pool(x, 2, 2, channels_last=self.channels_last) if self.pool else x)


class ChannelDropout(nn.Module):
    """Dropout of whole channels: one uniform number per sample and channel."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.mask = Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, ...] -> the same shape, some [B, C] slices 0, the rest scaled by 1 / (1 - p)."""
        if not self.training:
            return x
        ones = x.new_ones((*x.shape[:2], *(1 for _ in x.shape[2:])))  # [B, C, 1, ...]
        mask: Tensor = self.mask(ones)
        return x * mask


def drop_layer(p: float, model: str, *, setting: str = "dropout", channels: bool = False) -> nn.Module:
    """Build our dropout layer, or the identity for p = 0.

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
        module: holds Conv2d, Linear, Embedding and norm layers; parameters of other modules are left alone.
        generator: the only source of random numbers.
        conv: "torch" (uniform, PyTorch's default) or "fan_out" (normal, He et al. 2015, biases 0: torchvision's and
            FedPart's ResNets, FedFN's VGG).
    """
    for part in module.modules():
        match part:
            case nn.Conv2d() if conv == "fan_out":
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu", generator=generator)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
            case nn.Conv2d() | nn.Linear():
                fill_affine(part.weight, part.bias, generator)
            case nn.Embedding():
                nn.init.normal_(part.weight, generator=generator)
            case nn.BatchNorm1d() | nn.BatchNorm2d() | nn.GroupNorm() | nn.LayerNorm():
                part.reset_parameters()  # ones, zeros and the running statistics: nothing random
            case _:
                pass


def fill_affine(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
    """Draw PyTorch's default for linear and convolution layers: U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    if bias is not None:
        bound = 1 / math.sqrt(weight[0].numel())
        nn.init.uniform_(bias, -bound, bound, generator=generator)
