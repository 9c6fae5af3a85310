"""MobileNet v1 for small images (FedFN, FedPhoenix)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fedstrata.data.types import Task
from fedstrata.models.blocks import Layer, Model, Norm, Norms, drop_layer
from fedstrata.models.task import image, outputs

_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)  # (width, stride)
_DROPPED = (4, 6, 9, 12)  # blocks, counted from 1, that FedPhoenix's control follows with dropout


class Separable(nn.Module):
    """Depthwise 3x3 and pointwise 1x1 convolution, each with norm and ReLU."""

    drop: Layer

    def __init__(self, inputs: int, width: int, stride: int, norms: Norms) -> None:
        super().__init__()
        self.depth = nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=norms.bias)
        self.norm1 = norms.images(inputs)
        self.point = nn.Conv2d(inputs, width, 1, bias=norms.bias)
        self.norm2 = norms.images(width)
        self.drop = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, F, H / stride, W / stride]."""
        x = functional.relu(self.norm1(self.depth(x)))
        return self.drop(functional.relu(self.norm2(self.point(x))))


class MobileNet(Model):
    """3x3 stem with 32 filters and stride 1, thirteen separable blocks, average pool, head."""

    drop: Layer

    def __init__(self, channels: int, classes: int, norms: Norms, drop: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1, bias=norms.bias)
        self.norm1 = norms.images(32)
        self.blocks = nn.Sequential()
        before = 32
        for number, (width, stride) in enumerate(_BLOCKS, start=1):
            block = Separable(before, width, stride, norms)
            if number in _DROPPED:
                block.drop = drop_layer(drop, norms.model)
            self.blocks.append(block)
            before = width
        self.drop = drop_layer(drop, norms.model)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]."""
        x = functional.relu(self.norm1(self.conv1(x)))
        x = self.blocks(x).mean((2, 3))  # [B, 1024]
        return self.head(self.drop(x))


def mobilenet(task: Task, norm: Norm = "batch", track: bool = True, groups: int = 8, dropout: float = 0.0) -> Model:  # noqa: FBT001, FBT002
    """MobileNet v1 with a stride-1 stem: 32, then thirteen separable blocks up to 1024.

    Args:
        task: images of any size.
        norm: after each convolution; without one the convolutions get biases.
        track: keep running statistics of batch norms. FedFN builds them without: then a batch is normalised by itself
            at test time, too, and accuracy depends on what else is in the batch.
        groups: for ``norm = group``.
        dropout: after blocks 4, 6, 9, 12 and before the head (FedPhoenix's control takes 0.5).
    """
    channels, _, _ = image(task, "mobilenet")
    return MobileNet(channels, outputs(task, "mobilenet"), Norms("mobilenet", norm, groups, track), dropout)
