"""Convolution networks without shortcuts: FedAvg's CNN, the small CNN, FedSMU's LeNet and FedLAG's cnn20."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedstrata.errors import ConfigError
from fedstrata.models.blocks import Model, Norm, Norms, dropout
from fedstrata.models.task import Task, at_least, image, outputs


class Conv(nn.Module):
    """Convolution, norm, ReLU; then a 2x2 max-pool and channel dropout where asked: [B, C, H, W] -> [B, F, H', W']."""

    def __init__(self, inputs: int, width: int, kernel: int, padding: int, norms: Norms, *, pool: bool, drop: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, kernel, padding=padding)
        self.norm = norms.images(width)
        self.pool = pool
        self.drop = dropout(drop, norms.model, channels=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        return self.drop(F.max_pool2d(x, 2) if self.pool else x)  # type: ignore[no-any-return]


class ConvNet(Model):
    """Convolutions, then hidden linear layers with ReLU and dropout, then the head."""

    def __init__(self, convs: list[Conv], flat: int, hidden: tuple[int, ...], classes: int, drop: float, model: str) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        widths = (flat, *hidden)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, hidden, strict=False))
        self.drop = dropout(drop, model)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x)
        x = x.flatten(1)  # [B, D]
        for layer in self.hidden:
            x = self.drop(F.relu(layer(x)))
        return self.head(x)  # type: ignore[no-any-return]


def _two_convs(task: Task, norms: Norms, widths: tuple[int, int], hidden: tuple[int, ...], padding: int, drop: float) -> Model:
    """Two 5x5 convolutions, each with a 2x2 pool, then ``hidden``."""
    name = norms.model
    channels, *size = image(task, name)
    if not 0 <= padding <= 2:
        raise ConfigError(f"{name}(padding={padding}): 0 (as published here), 1 or 2 (keeps the size, the 'same' of TensorFlow).")
    smallest = next(s for s in range(1, 20) if _after(s, padding) >= 1)
    at_least((size[0], size[1]), smallest, name, f"Write {name}(padding=2), which goes down to 4 x 4, or take mlp." if padding < 2 else "Take mlp.")
    convs = [Conv(a, b, 5, padding, norms, pool=True, drop=drop) for a, b in ((channels, widths[0]), widths)]
    flat = widths[1] * _after(size[0], padding) * _after(size[1], padding)
    return ConvNet(convs, flat, hidden, outputs(task, name), drop, name)


def _after(size: int, padding: int) -> int:
    """Rows left after two 5x5 convolutions with a 2x2 pool each; below 1 where a kernel does not fit."""
    for _ in range(2):
        size = (size + 2 * padding - 4) // 2
    return size


def cnn(task: Task, norm: Norm = "none", padding: int = 0, dropout: float = 0.0, groups: int = 8) -> Model:
    """The CNN of federated averaging: 5x5 conv 32, pool, 5x5 conv 64, pool, 512, classes.

    Args:
        task: images.
        norm: after each convolution.
        padding: 0 gives the 878,538 parameters that PyTorch libraries use on 3 x 32 x 32; 2 the 1,663,370 of the paper on 1 x 28 x 28.
        dropout: of channels after each convolution and of units after the hidden layer.
        groups: for ``norm = group``.
    """
    return _two_convs(task, Norms("cnn", norm, groups), (32, 64), (512,), padding, dropout)


def small_cnn(task: Task, norm: Norm = "none", padding: int = 0, dropout: float = 0.0, groups: int = 2) -> Model:
    """The small CNN of FedPhoenix: 5x5 conv 6, pool, 5x5 conv 16, pool, 120, 84, classes; its dropout control is ``dropout=0.3``."""
    return _two_convs(task, Norms("small_cnn", norm, groups), (6, 16), (120, 84), padding, dropout)


def lenet(task: Task, norm: Norm = "none", padding: int = 0, dropout: float = 0.0, groups: int = 8) -> Model:
    """The LeNet of FedSMU: 5x5 conv 64, pool, 5x5 conv 64, pool, 384, 192, classes."""
    return _two_convs(task, Norms("lenet", norm, groups), (64, 64), (384, 192), padding, dropout)


def cnn20(task: Task, norm: Norm = "none", dropout: float = 0.0, groups: int = 8) -> Model:
    """FedLAG's network for CIFAR: 3x3 convs 32, 32, pool, 64, 64, pool, 128, 128, pool, then 512, classes. Eight layers with weights."""
    norms = Norms("cnn20", norm, groups)
    channels, *size = image(task, "cnn20")
    at_least((size[0], size[1]), 8, "cnn20", "Take small_cnn(padding=2) or mlp.")
    widths = (channels, 32, 32, 64, 64, 128, 128)
    convs = [
        Conv(a, b, 3, 1, norms, pool=bool(i % 2), drop=dropout if i % 2 else 0.0) for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False))
    ]
    flat = 128 * (size[0] // 8) * (size[1] // 8)
    return ConvNet(convs, flat, (512,), outputs(task, "cnn20"), dropout, "cnn20")
