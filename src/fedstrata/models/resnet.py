"""Residual networks: ResNet-8 and ResNet-18 with the 7x7 or the 3x3 stem, and ResNet-9."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedstrata.core.layout import GroupSpec, derive_groups
from fedstrata.data.types import Task
from fedstrata.models.blocks import Conv, ConvInit, Layer, Model, Norm, Norms, drop_layer, fill, max_pool
from fedstrata.models.task import at_least, image, outputs

Down = Literal["own", "conv1", "conv2"]


class Shortcut(nn.Module):
    """1x1 convolution and norm, where a block changes width or size."""

    norm: Layer

    def __init__(self, inputs: int, width: int, stride: int, norms: Norms) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 1, stride, bias=norms.bias)
        self.norm = norms.images(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, F, H / stride, W / stride]."""
        return self.norm(self.conv(x))


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al. 2016, basic block).

    ``down`` is defined last: its depth is behind conv2.
    """

    def __init__(self, inputs: int, width: int, stride: int, norms: Norms) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=norms.bias)
        self.norm1 = norms.images(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=norms.bias)
        self.norm2 = norms.images(width)
        self.down = Shortcut(inputs, width, stride, norms) if stride > 1 or inputs != width else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, F, H / stride, W / stride]."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return functional.relu(y + (x if self.down is None else self.down(x)))


class ResNet(Model):
    """Stem, stages of basic blocks that halve the map from the second on, average pool, head."""

    drop: Layer

    def __init__(
        self, channels: int, classes: int, widths: tuple[int, ...], norms: Norms, *, blocks: int, stem: int, drop: float
    ) -> None:
        super().__init__()
        self.stem, self.stages = stem, tuple(f"layer{i + 1}" for i in range(len(widths)))
        self.init: ConvInit = "fan_out"
        self.down: Down = "own"
        self.conv1 = nn.Conv2d(channels, widths[0], stem, 2 if stem == 7 else 1, padding=stem // 2, bias=norms.bias)
        self.norm1 = norms.images(widths[0])
        before = widths[0]
        for stage, width in zip(self.stages, widths, strict=True):
            first = Block(before, width, 1 if stage == "layer1" else 2, norms)
            rest = [Block(width, width, 1, norms) for _ in range(blocks - 1)]
            self.add_module(stage, nn.Sequential(first, *rest, drop_layer(drop, norms.model)))
            before = width
        self.exits = dict(zip(self.stages, widths, strict=True))
        self.drop = drop_layer(drop, norms.model)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor, exits: int | None = None) -> Tensor:
        """[B, C, H, W] -> [B, classes]; or the pooled features [B, D] after so many stages."""
        x = functional.relu(self.norm1(self.conv1(x)))
        if self.stem == 7:
            x = max_pool(x, 3, 2, 1, channels_last=self.channels_last)
        for stage in self.stages[:exits]:
            x = getattr(self, stage)(x)
        x = x.mean((2, 3))  # [B, D]
        return self.head(self.drop(x)) if exits is None else x

    def start(self, generator: torch.Generator) -> None:
        """As published: He's normal for convolutions (``fan_out``), or PyTorch's default everywhere."""
        fill(self, generator, self.init)

    def layer_groups(self) -> list[GroupSpec]:
        """Each convolution with its norm, the classifier last.

        A shortcut joins conv1 or conv2 of its block where asked.
        """
        shell = nn.Module()
        shell._modules = self._modules  # the rule of the layout, without this method
        groups = derive_groups(shell)
        if self.down == "own":
            return groups
        hosts = {g.name.removesuffix("down.conv") + self.down: g for g in groups if g.name.endswith("down.conv")}
        kept = [g for g in groups if g not in hosts.values()]
        return [g._replace(prefixes=g.prefixes + hosts[g.name].prefixes) if g.name in hosts else g for g in kept]


def resnet8(
    task: Task,
    norm: Norm = "batch",
    stem: Literal[3, 7] = 7,
    *,
    groups: int = 32,
    dropout: float = 0.0,
    init: ConvInit = "fan_out",
    down: Down = "own",
) -> Model:
    """FedPart's ResNet-8: three stages of one basic block, 64, 128, 256 wide; 10 layer groups.

    Args:
        task: images.
        norm: after each convolution; without one the convolutions get biases.
        stem: 7 (stride 2, max-pool: as published) or 3 (stride 1, no pool: for small images).
        groups: for ``norm = group``.
        dropout: after each stage and before the head (FedPhoenix's control takes 0.5).
        init: "fan_out" (FedPart, torchvision) or "torch" (FedFN, FedPhoenix).
        down: layer group of the shortcuts: their own, or that of a convolution of their block.
    """
    return _resnet(
        task, Norms("resnet8", norm, groups), (64, 128, 256), blocks=1, stem=stem, drop=dropout, init=init, down=down
    )


def resnet18(
    task: Task,
    norm: Norm = "batch",
    stem: Literal[3, 7] = 7,
    *,
    groups: int = 32,
    dropout: float = 0.0,
    init: ConvInit = "fan_out",
    down: Down = "own",
) -> Model:
    """ResNet-18: four stages of two basic blocks, 64 to 512 wide.

    It has 21 layer groups, or the 18 of FedPart's rebuttal with down=conv2.

    Args:
        task: images.
        norm: after each convolution; without one the convolutions get biases.
        stem: 7 (stride 2, max-pool) or 3 (stride 1, no pool: FedPhoenix on CIFAR).
        groups: for ``norm = group``; FedSMU takes 2.
        dropout: after each stage and before the head (FedPhoenix's control takes 0.5, or 0.25 for Tiny-ImageNet).
        init: "fan_out" (FedPart, torchvision) or "torch" (FedFN, FedPhoenix).
        down: layer group of the shortcuts: their own, or that of a convolution of their block.
    """
    return _resnet(
        task,
        Norms("resnet18", norm, groups),
        (64, 128, 256, 512),
        blocks=2,
        stem=stem,
        drop=dropout,
        init=init,
        down=down,
    )


def _resnet(
    task: Task,
    norms: Norms,
    widths: tuple[int, ...],
    *,
    blocks: int,
    stem: int,
    drop: float,
    init: ConvInit,
    down: Down,
) -> Model:
    channels, _, _ = image(task, norms.model)
    model = ResNet(channels, outputs(task, norms.model), widths, norms, blocks=blocks, stem=stem, drop=drop)
    model.init, model.down = init, down
    return model


class Residual(nn.Module):
    """x + second(first(x))."""

    def __init__(self, width: int, norms: Norms) -> None:
        super().__init__()
        self.first = Conv(width, width, norms, bias=norms.bias)
        self.second = Conv(width, width, norms, bias=norms.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape."""
        y: Tensor = self.second(self.first(x))
        return x + y


class ResNet9(Model):
    """Eight 3x3 convolutions, two residual pairs among them, global max-pool, head."""

    drop: Layer

    def __init__(self, channels: int, classes: int, norms: Norms) -> None:
        super().__init__()
        self.conv1 = Conv(channels, 64, norms, bias=norms.bias)
        self.conv2 = Conv(64, 128, norms, pool=True, bias=norms.bias)
        self.res1 = Residual(128, norms)
        self.conv3 = Conv(128, 256, norms, pool=True, bias=norms.bias)
        self.conv4 = Conv(256, 512, norms, pool=True, bias=norms.bias)
        self.res2 = Residual(512, norms)
        self.drop = nn.Identity()
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]."""
        x = self.res1(self.conv2(self.conv1(x)))
        x = self.res2(self.conv4(self.conv3(x)))
        x = functional.adaptive_max_pool2d(x, 1).flatten(1)  # [B, 512]; a 4x4 pool on 32 x 32 pixels
        return self.head(self.drop(x))


def resnet9(task: Task, norm: Norm = "batch", groups: int = 32, dropout: float = 0.0) -> Model:
    """ResNet-9, 64 to 512 wide, with the common widths (FedLAG does not give its own).

    Args:
        task: images of at least 8 x 8 pixels.
        norm: after each convolution; without one the convolutions get biases.
        groups: for ``norm = group``.
        dropout: before the head.
    """
    channels, *size = image(task, "resnet9")
    at_least((size[0], size[1]), 8, "resnet9", "Take resnet8, which takes any size.")
    model = ResNet9(channels, outputs(task, "resnet9"), Norms("resnet9", norm, groups))
    model.drop = drop_layer(dropout, "resnet9")
    return model
