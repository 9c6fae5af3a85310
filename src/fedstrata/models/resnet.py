"""Residual networks: ResNet-8 and ResNet-18 with the 7x7 or the 3x3 stem, and ResNet-9."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstrata.layout import GroupSpec, derive_groups
from fedstrata.models.blocks import ConvInit, Model, Norm, Norms, dropout, fill
from fedstrata.models.task import Task, at_least, image, outputs

Down = Literal["own", "conv1", "conv2"]


class Shortcut(nn.Module):
    """1x1 convolution and norm, where a block changes width or size."""

    def __init__(self, inputs: int, width: int, stride: int, norms: Norms) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 1, stride, bias=norms.bias)
        self.norm = norms.images(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al. 2016, basic block). ``down`` is defined last: its depth is behind conv2."""

    def __init__(self, inputs: int, width: int, stride: int, norms: Norms) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=norms.bias)
        self.norm1 = norms.images(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=norms.bias)
        self.norm2 = norms.images(width)
        self.down = Shortcut(inputs, width, stride, norms) if stride > 1 or inputs != width else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(Model):
    """Stem, stages of basic blocks that halve the map from the second on, average pool, head."""

    def __init__(
        self, channels: int, classes: int, widths: tuple[int, ...], depth: int, stem: int, norms: Norms, drop: float, init: ConvInit, down: Down
    ) -> None:
        super().__init__()
        self.stem, self.init, self.down = stem, init, down
        self.conv1 = nn.Conv2d(channels, widths[0], stem, 2 if stem == 7 else 1, padding=stem // 2, bias=norms.bias)
        self.norm1 = norms.images(widths[0])
        self.stages = len(widths)
        before = widths[0]
        for stage, width in enumerate(widths, start=1):
            blocks = [Block(before if i == 0 else width, width, 2 if stage > 1 and i == 0 else 1, norms) for i in range(depth)]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            before = width
        self.drop = dropout(drop, norms.model)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        if self.stem == 7:
            x = F.max_pool2d(x, 3, 2, padding=1)
        for stage in range(1, self.stages + 1):
            x = self.drop(self.get_submodule(f"layer{stage}")(x))
        x = x.mean((2, 3))  # [B, D]
        return self.head(self.drop(x))  # type: ignore[no-any-return]

    def start(self, generator: torch.Generator) -> None:
        """As published: He's normal for convolutions (``fan_out``), or PyTorch's default everywhere."""
        fill(self, generator, self.init)

    def layer_groups(self) -> list[GroupSpec]:
        """A convolution with its norm each, the classifier last; a shortcut joins conv1 or conv2 of its block where asked."""
        groups = _by_definition(self)
        if self.down == "own":
            return groups
        shortcuts = {g.name.removesuffix("down.conv"): g for g in groups if g.name.endswith("down.conv")}
        kept = [g for g in groups if not g.name.endswith("down.conv")]
        host = {block + self.down: g for block, g in shortcuts.items()}
        return [g._replace(prefixes=g.prefixes + host[g.name].prefixes) if g.name in host else g for g in kept]


def _by_definition(model: nn.Module) -> list[GroupSpec]:
    """The layout's own rule, applied to a model that declares groups itself."""
    shell = nn.Module()
    shell._modules = model._modules
    return derive_groups(shell)


def resnet8(
    task: Task, norm: Norm = "batch", stem: Literal[3, 7] = 7, groups: int = 32, dropout: float = 0.0, init: ConvInit = "fan_out", down: Down = "own"
) -> Model:
    """The ResNet-8 of FedPart: three stages of one basic block, 64, 128, 256 wide; 10 layer groups.

    Args:
        task: images.
        norm: after each convolution; without one the convolutions get biases.
        stem: 7 (stride 2, max-pool: as published) or 3 (stride 1, no pool: for small images).
        groups: for ``norm = group``.
        dropout: after each stage and before the head (FedPhoenix's control takes 0.5).
        init: "fan_out" (FedPart, torchvision) or "torch" (FedFN, FedPhoenix).
        down: layer group of the shortcuts: their own, or that of a convolution of their block.
    """
    return _resnet("resnet8", task, Norms("resnet8", norm, groups), (64, 128, 256), 1, stem, dropout, init, down)


def resnet18(
    task: Task, norm: Norm = "batch", stem: Literal[3, 7] = 7, groups: int = 32, dropout: float = 0.0, init: ConvInit = "fan_out", down: Down = "own"
) -> Model:
    """ResNet-18: four stages of two basic blocks, 64 to 512 wide; 21 layer groups, or the 18 of FedPart's rebuttal with ``down=conv2``.

    Args:
        task: images.
        norm: after each convolution; without one the convolutions get biases.
        stem: 7 (stride 2, max-pool) or 3 (stride 1, no pool: FedPhoenix and FedSMU on CIFAR).
        groups: for ``norm = group``; FedSMU takes 2.
        dropout: after each stage and before the head (FedPhoenix's control takes 0.5, or 0.25 for Tiny-ImageNet).
        init: "fan_out" (FedPart, torchvision) or "torch" (FedFN, FedPhoenix).
        down: layer group of the shortcuts: their own, or that of a convolution of their block.
    """
    return _resnet("resnet18", task, Norms("resnet18", norm, groups), (64, 128, 256, 512), 2, stem, dropout, init, down)


def _resnet(name: str, task: Task, norms: Norms, widths: tuple[int, ...], depth: int, stem: int, drop: float, init: ConvInit, down: Down) -> Model:
    channels, _, _ = image(task, name)
    return ResNet(channels, outputs(task, name), widths, depth, stem, norms, drop, init, down)


class ConvNorm(nn.Module):
    """3x3 convolution, norm, ReLU, and a 2x2 max-pool where asked."""

    def __init__(self, inputs: int, width: int, norms: Norms, *, pool: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, padding=1, bias=norms.bias)
        self.norm = norms.images(width)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        return F.max_pool2d(x, 2) if self.pool else x


class Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        return x + super().forward(x)  # type: ignore[no-any-return]


class ResNet9(Model):
    """Eight 3x3 convolutions, two residual pairs among them, global max-pool, head."""

    def __init__(self, channels: int, classes: int, norms: Norms, drop: float) -> None:
        super().__init__()
        self.conv1 = ConvNorm(channels, 64, norms)
        self.conv2 = ConvNorm(64, 128, norms, pool=True)
        self.res1 = Residual(ConvNorm(128, 128, norms), ConvNorm(128, 128, norms))
        self.conv3 = ConvNorm(128, 256, norms, pool=True)
        self.conv4 = ConvNorm(256, 512, norms, pool=True)
        self.res2 = Residual(ConvNorm(512, 512, norms), ConvNorm(512, 512, norms))
        self.drop = dropout(drop, norms.model)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.res1(self.conv2(self.conv1(x)))
        x = self.res2(self.conv4(self.conv3(x)))
        x = F.adaptive_max_pool2d(x, 1).flatten(1)  # [B, 512]; a 4x4 pool on 32 x 32 pixels
        return self.head(self.drop(x))  # type: ignore[no-any-return]


def resnet9(task: Task, norm: Norm = "batch", groups: int = 32, dropout: float = 0.0) -> Model:
    """ResNet-9, 64 to 512 wide: FedLAG names it without its widths; these are the common ones (after D. Page's DAWNBench network)."""
    channels, *size = image(task, "resnet9")
    at_least((size[0], size[1]), 8, "resnet9", "Take resnet8, which takes any size.")
    return ResNet9(channels, outputs(task, "resnet9"), Norms("resnet9", norm, groups), dropout)
