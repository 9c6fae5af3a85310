"""Convolution networks without shortcuts: CNN, small CNN, LeNet, cnn20, VGG-11 and VGG-16 of several papers."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedstrata.common.errors import ConfigError
from fedstrata.data.types import Task
from fedstrata.models.blocks import Conv, ConvInit, Layer, Model, Norm, Norms, drop_layer, fill
from fedstrata.models.task import at_least, image, outputs


class ConvNet(Model):
    """Convolutions, then hidden linear layers with ReLU and dropout, then the head."""

    def __init__(
        self,
        convs: list[Conv],
        flat: int,
        hidden: tuple[int, ...],
        classes: int,
        *,
        drops: list[nn.Module],
        init: ConvInit = "torch",
        pool: int = 0,
    ) -> None:
        super().__init__()
        self.init, self.pool = init, pool
        self.convs = nn.ModuleList(convs)
        widths = (flat, *hidden)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.drops = nn.ModuleList(drops)  # one for each hidden layer, each with its mask
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]."""
        for conv in self.convs:
            x = conv(x)
        if self.pool:
            x = functional.adaptive_avg_pool2d(x, self.pool)
        x = x.flatten(1)  # [B, D]
        for layer, drop in zip(self.hidden, self.drops, strict=True):
            x = drop(functional.relu(layer(x)))
        return self.head(x)

    def start(self, generator: torch.Generator) -> None:
        """PyTorch's default, or He's normal for the convolutions of a VGG."""
        fill(self, generator, self.init)


def _two_convs(
    task: Task, norms: Norms, convs: tuple[int, int], hidden: tuple[int, ...], *, padding: int, drop: float
) -> Model:
    """Two 5x5 convolutions, each with a 2x2 pool, then ``hidden``."""
    name = norms.model
    channels, *size = image(task, name)
    if not 0 <= padding <= 2:
        raise ConfigError(
            f"{name}(padding={padding}): write 0, 1, or 2, which keeps the size (the 'same' of TensorFlow)."
        )
    smallest = next(s for s in range(1, 20) if _after(s, padding) >= 1)
    at_least(
        (size[0], size[1]),
        smallest,
        name,
        f"Write {name}(padding=2), which goes down to 4 x 4, or take mlp." if padding < 2 else "Take mlp.",
    )
    flat = convs[1] * _after(size[0], padding) * _after(size[1], padding)
    layers = [Conv(a, b, norms, kernel=5, padding=padding, pool=True) for a, b in pairwise((channels, *convs))]
    for layer in layers:
        layer.drop = drop_layer(drop, name, channels=True)
    return ConvNet(layers, flat, hidden, outputs(task, name), drops=[drop_layer(drop, name) for _ in hidden])


def _after(size: int, padding: int) -> int:
    """Rows left after two 5x5 convolutions with a 2x2 pool each; below 1 where a kernel does not fit."""
    for _ in range(2):
        size = (size + 2 * padding - 4) // 2
    return size


def cnn(task: Task, norm: Norm = "none", padding: int = 0, dropout: float = 0.0, groups: int = 8) -> Model:
    """FedAvg's CNN: 5x5 conv 32, pool, 5x5 conv 64, pool, 512, classes.

    Args:
        task: images.
        norm: after each convolution.
        padding: 0 gives the 878,538 parameters that PyTorch libraries use on 3 x 32 x 32; 2 the 1,663,370 of the paper
            on 1 x 28 x 28.
        dropout: of channels after each convolution and of units after the hidden layer.
        groups: for ``norm = group``.
    """
    return _two_convs(task, Norms("cnn", norm, groups), (32, 64), (512,), padding=padding, drop=dropout)


def small_cnn(task: Task, norm: Norm = "none", padding: int = 0, dropout: float = 0.0, groups: int = 2) -> Model:
    """FedPhoenix's small CNN: 5x5 conv 6, pool, 5x5 conv 16, pool, 120, 84, classes.

    Its dropout control is dropout=0.3.
    """
    return _two_convs(task, Norms("small_cnn", norm, groups), (6, 16), (120, 84), padding=padding, drop=dropout)


def lenet(task: Task, norm: Norm = "none", padding: int = 0, dropout: float = 0.0, groups: int = 8) -> Model:
    """FedSMU's LeNet: 5x5 conv 64, pool, 5x5 conv 64, pool, 384, 192, classes."""
    return _two_convs(task, Norms("lenet", norm, groups), (64, 64), (384, 192), padding=padding, drop=dropout)


class SmoothNet(Model):
    """5x5 convolutions with strides instead of pools and a smooth activation, then the head.

    The network can be differentiated twice.
    """

    def __init__(
        self,
        channels: int,
        strides: tuple[int, ...],
        width: int,
        flat: int,
        classes: int,
        *,
        activation: str,
        spread: float,
    ) -> None:
        super().__init__()
        self.bend, self.spread = activation, spread
        widths = (channels, *(width for _ in strides))
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 5, stride=s, padding=2) for (a, b), s in zip(pairwise(widths), strides, strict=True)
        )
        self.head = nn.Linear(flat, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]."""
        bends: dict[str, Layer] = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "elu": functional.elu}
        bend = bends[self.bend]
        for conv in self.convs:
            x = bend(conv(x))
        return self.head(x.flatten(1))

    def start(self, generator: torch.Generator) -> None:
        """U(-spread, spread) for every parameter, or PyTorch's default where spread is 0."""
        fill(self, generator)
        if self.spread:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -self.spread, self.spread, generator=generator)


def dlg_lenet(task: Task, activation: Literal["sigmoid", "tanh", "elu"] = "sigmoid", spread: float = 0.5) -> Model:
    """DLG's LeNet: 5x5 convs 12, 12, 12 with strides 2, 2, 1 and sigmoids, classes; small, smooth and without pools.

    Args:
        task: images.
        activation: after each convolution.
        spread: all parameters start from U(-spread, spread); 0 is PyTorch's default.
    """
    channels, *size = image(task, "dlg_lenet")
    if spread < 0:
        raise ConfigError(
            f"dlg_lenet(spread={spread}): parameters start from U(-spread, spread), with spread at least 0; 0 is"
            " PyTorch's default."
        )
    cells = -(-size[0] // 4) * -(-size[1] // 4)
    return SmoothNet(
        channels, (2, 2, 1), 12, 12 * cells, outputs(task, "dlg_lenet"), activation=activation, spread=spread
    )


def cnn20(task: Task, norm: Norm = "none", dropout: float = 0.0, groups: int = 8) -> Model:
    """FedLAG's network for CIFAR: 3x3 convs 32, 32, pool, 64, 64, pool, 128, 128, pool, then 512, classes.

    Args:
        task: images.
        norm: after each convolution.
        dropout: of channels after each pool and of units after the hidden layer.
        groups: for ``norm = group``.
    """
    return _stacked(
        task,
        Norms("cnn20", norm, groups),
        ((32, 32), (64, 64), (128, 128)),
        (512,),
        hidden_drop=dropout,
        conv_drop=dropout,
        channels=True,
    )


def vgg11(task: Task, norm: Norm = "none", dropout: float = 0.0, groups: int = 32) -> Model:
    """FedFN's VGG-11: eight 3x3 convs (64 to 512, five pools), then 512, 512, classes.

    Convolutions start normal with fan-out, biases at 0.

    Args:
        task: images of at least 32 x 32 pixels.
        norm: after each convolution.
        dropout: after each hidden linear layer.
        groups: for ``norm = group``.
    """
    stages = ((64,), (128,), (256, 256), (512, 512), (512, 512))
    return _stacked(task, Norms("vgg11", norm, groups), stages, (512, 512), hidden_drop=dropout, init="fan_out")


def vgg16(
    task: Task,
    norm: Norm = "batch",
    dropout: float = 0.5,
    conv_dropout: float = 0.0,
    pool: int = 0,
    *,
    groups: int = 32,
) -> Model:
    """FedPhoenix's VGG-16-BN: thirteen 3x3 convs with bias (64 to 512, five pools), then 4096, 4096, classes.

    Args:
        task: images of at least 32 x 32 pixels.
        norm: after each convolution.
        dropout: after each of the two hidden linear layers.
        conv_dropout: element-wise, after the first four pools (the dropout control takes 0.5).
        pool: average the last map to ``pool x pool``; 0 leaves it. FedPhoenix takes 4 on Tiny-ImageNet (8192 inputs).
        groups: for ``norm = group``.
    """
    stages = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
    if pool < 0:
        raise ConfigError(f"vgg16(pool={pool}): the last map is averaged to pool x pool values; 0 leaves it as it is.")
    return _stacked(
        task,
        Norms("vgg16", norm, groups),
        stages,
        (4096, 4096),
        hidden_drop=dropout,
        conv_drop=conv_dropout,
        init="fan_out",
        pool=pool,
    )


def _stacked(
    task: Task,
    norms: Norms,
    stages: tuple[tuple[int, ...], ...],
    hidden: tuple[int, ...],
    *,
    hidden_drop: float,
    conv_drop: float = 0.0,
    channels: bool = False,
    init: ConvInit = "torch",
    pool: int = 0,
) -> Model:
    """Stages of 3x3 convolutions that keep the size, each ending in a 2x2 pool; then ``hidden``.

    A VGG has no dropout after its fifth pool.
    """
    name = norms.model
    before, *size = image(task, name)
    shrink = 2 ** len(stages)
    at_least((size[0], size[1]), shrink, name, "Take resnet8, which takes any size, or small_cnn(padding=2) or mlp.")
    layers = []
    for depth, widths in enumerate(stages):
        for i, width in enumerate(widths):
            layers.append(Conv(before, width, norms, pool=i == len(widths) - 1))
            before = width
        if depth < 4:
            layers[-1].drop = drop_layer(
                conv_drop, name, setting="conv_dropout" if name == "vgg16" else "dropout", channels=channels
            )
    cells = pool * pool if pool else (size[0] // shrink) * (size[1] // shrink)
    drops = [drop_layer(hidden_drop, name) for _ in hidden]
    return ConvNet(layers, before * cells, hidden, outputs(task, name), drops=drops, init=init, pool=pool)
