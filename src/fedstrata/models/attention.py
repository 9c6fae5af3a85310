"""Networks of attention layers: FedPart's text transformer and the small vision transformer.

Attention is written out as matrix products with a softmax, so that dropout draws from the derived stream, second
derivatives exist (gradient inversion needs them), and clients can be stacked.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.core.layout import GroupSpec
from fedstrata.data.types import Task
from fedstrata.models.blocks import Layer, Model, drop_layer, fill, fill_affine
from fedstrata.models.task import image, outputs, tokens


class Attention(nn.Module):
    """Multi-head self-attention over all positions."""

    drop: Layer

    def __init__(self, width: int, heads: int, drop: nn.Module) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] -> [B, L, D]."""
        batch, length, width = x.shape
        parts = (
            self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )  # [3, B, H, L, D/H]
        q, k, v = parts.unbind(0)
        scores = (q / math.sqrt(width // self.heads)) @ k.transpose(-2, -1)  # [B, H, L, L]
        mixed = self.drop(scores.softmax(-1)) @ v  # [B, H, L, D/H]
        return cast("Tensor", self.out(mixed.transpose(1, 2).reshape(batch, length, width)))


class EncoderLayer(nn.Module):
    """Attention and a ReLU network, each with a shortcut and then a layer norm (post-norm)."""

    drop1: Layer
    drop2: Layer
    drop3: Layer

    def __init__(self, width: int, heads: int, feedforward: int, drop: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, drop_layer(drop, "transformer"))
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.drop1, self.drop2, self.drop3 = (drop_layer(drop, "transformer") for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] -> [B, L, D]."""
        x = self.norm1(x + self.drop1(self.attention(x)))
        y = self.drop2(functional.relu(self.linear1(x)))
        return cast("Tensor", self.norm2(x + self.drop3(self.linear2(y))))


class Transformer(Model):
    """Embedding with sinusoidal positions, encoder layers, and a head on the last position, padding or not."""

    drop: Layer

    def __init__(
        self, vocabulary: int, classes: int, width: int, *, heads: int, feedforward: int, layers: int, drop: float
    ) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(vocabulary, width)
        self.drop = drop_layer(drop, "transformer")
        self.layers = nn.ModuleList(EncoderLayer(width, heads, feedforward, drop) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L] int64 -> [B, classes]."""
        embedded: Tensor = self.embedding(x) * math.sqrt(self.width)
        y = self.drop(embedded + sinusoids(embedded))  # [B, L, D]
        for layer in self.layers:
            y = layer(y)
        return self.head(y[:, -1])

    def start(self, generator: torch.Generator) -> None:
        """Embedding U(-0.1, 0.1).

        One encoder layer is drawn and the others are copies of it, so that all start equal (FedPart).
        """
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1, generator=generator)
        first, *rest = self.layers
        assert isinstance(first, EncoderLayer)
        fill(first, generator)
        nn.init.xavier_uniform_(first.attention.qkv.weight, generator=generator)  # as torch.nn.MultiheadAttention
        for bias in (first.attention.qkv.bias, first.attention.out.bias):
            nn.init.zeros_(bias)
        for layer in rest:
            layer.load_state_dict(first.state_dict())
        fill(cast("nn.Module", self.head), generator)

    def layer_groups(self) -> list[GroupSpec]:
        """Embedding; for each layer attention, then feed-forward with both norms; classifier: 8 groups for 3 layers."""
        groups = [GroupSpec("embedding", "embedding", ("embedding",))]
        for i in range(len(self.layers)):
            at = f"layers.{i}"
            groups.append(GroupSpec(f"{at}.attention", "attention", (f"{at}.attention",)))
            groups.append(
                GroupSpec(
                    f"{at}.feedforward",
                    "feedforward",
                    tuple(f"{at}.{part}" for part in ("linear1", "linear2", "norm1", "norm2")),
                )
            )
        return [*groups, GroupSpec("head", "linear", ("head",))]


def sinusoids(like: Tensor) -> Tensor:
    """Positions as sines and cosines (Vaswani et al. 2017), [L, D] for ``like`` [B, L, D].

    Computed, not kept: a buffer would be sent.
    """
    length, width = like.shape[-2:]
    rates = torch.exp(
        torch.arange(0, width, 2, dtype=like.dtype, device=like.device) * (-math.log(10000.0) / width)
    )  # [D/2]
    angles = torch.arange(length, dtype=like.dtype, device=like.device)[:, None] * rates  # [L, D/2]
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


def transformer(
    task: Task, width: int = 200, heads: int = 2, feedforward: int = 200, layers: int = 3, *, dropout: float = 0.1
) -> Model:
    """FedPart's text classifier: embedding, three post-norm encoder layers, prediction from the last position.

    It has 8 layer groups.

    Args:
        task: rows of tokens.
        width: of the embedding; even, and a multiple of ``heads``.
        heads: of the attention.
        feedforward: hidden width of each layer's network.
        layers: of the encoder.
        dropout: after the positions, on attention weights, and twice in each layer's network.
    """
    vocabulary, _ = tokens(task, "transformer")
    _divides("transformer", width, heads)
    if width % 2:
        raise ConfigError(
            f"transformer(width={width}): positions are pairs of sine and cosine, so the width is even. Write"
            f" width={width + 1}."
        )
    if feedforward < 1 or layers < 1:
        raise ConfigError(f"transformer(feedforward={feedforward}, layers={layers}): both are at least 1.")
    return Transformer(
        vocabulary,
        outputs(task, "transformer"),
        width,
        heads=heads,
        feedforward=feedforward,
        layers=layers,
        drop=dropout,
    )


class Patches(nn.Module):
    """Cuts an image into patches, embeds each linearly, puts a class token before them and adds learned positions."""

    def __init__(self, channels: int, count: int, patch: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, count + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, 1 + patches, D]."""
        y = self.conv(x).flatten(2).transpose(1, 2)  # [B, patches, D]
        return torch.cat((self.token.expand(y.shape[0], -1, -1), y), 1) + self.position


class VisionLayer(nn.Module):
    """Layer norm, attention, shortcut; layer norm, GELU network, shortcut (pre-norm)."""

    drop1: Layer
    drop2: Layer
    drop3: Layer

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads, drop_layer(drop, "vit_s"))
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)
        self.drop1, self.drop2, self.drop3 = (drop_layer(drop, "vit_s") for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] -> [B, L, D]."""
        x = x + self.drop1(self.attention(self.norm1(x)))
        y = self.drop2(functional.gelu(self.linear1(self.norm2(x))))
        return x + self.drop3(self.linear2(y))


class VisionTransformer(Model):
    """Patches, pre-norm layers, a last layer norm, and a head on the class token."""

    drop: Layer

    def __init__(self, patches: Patches, classes: int, *, layers: int, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.patches = patches
        self.drop = drop_layer(drop, "vit_s")
        self.layers = nn.ModuleList(VisionLayer(width, heads, drop) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]."""
        x = self.drop(self.patches(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])

    def start(self, generator: torch.Generator) -> None:
        """Linear weights and positions from a normal with standard deviation 0.02 cut at 2, biases 0 (Touvron et al.

        2021).
        """
        fill(self, generator)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02, generator=generator)
                nn.init.zeros_(part.bias)
        nn.init.trunc_normal_(self.patches.token, std=0.02, generator=generator)
        nn.init.trunc_normal_(self.patches.position, std=0.02, generator=generator)
        fill_affine(self.patches.conv.weight, self.patches.conv.bias, generator)

    def layer_groups(self) -> list[GroupSpec]:
        """Patches with token and positions; for each layer attention and feed-forward, each with the norm before it.

        Last norm; head.
        """
        groups = [GroupSpec("patches", "embedding", ("patches",))]
        for i in range(len(self.layers)):
            at = f"layers.{i}"
            groups.append(GroupSpec(f"{at}.attention", "attention", (f"{at}.norm1", f"{at}.attention")))
            groups.append(
                GroupSpec(f"{at}.feedforward", "feedforward", (f"{at}.norm2", f"{at}.linear1", f"{at}.linear2"))
            )
        return [*groups, GroupSpec("norm", "norm", ("norm",)), GroupSpec("head", "linear", ("head",))]


def vit_s(
    task: Task, patch: int = 4, layers: int = 12, width: int = 384, heads: int = 6, *, dropout: float = 0.0
) -> Model:
    """ViT-S: 12 pre-norm layers, 384 wide, 6 heads, class token, learned positions.

    Args:
        task: images whose height and width are multiples of ``patch``.
        patch: side of a patch in pixels. FedSMU does not give its own; 4 makes 64 patches of 32 x 32 pixels.
        layers: of the encoder.
        width: a multiple of ``heads``.
        heads: of the attention.
        dropout: after the positions, on attention weights, and twice in each layer's network.
    """
    channels, *size = image(task, "vit_s")
    _divides("vit_s", width, heads)
    if layers < 1 or patch < 1:
        raise ConfigError(f"vit_s(layers={layers}, patch={patch}): both are at least 1.")
    if size[0] % patch or size[1] % patch:
        fits = ", ".join(str(p) for p in range(1, min(size) + 1) if size[0] % p == 0 and size[1] % p == 0)
        raise DataError(
            f"vit_s(patch={patch}): images of {size[0]} x {size[1]} pixels do not divide into such patches. Set patch"
            f" to one of {fits}."
        )
    patches = Patches(channels, (size[0] // patch) * (size[1] // patch), patch, width)
    return VisionTransformer(patches, outputs(task, "vit_s"), layers=layers, width=width, heads=heads, drop=dropout)


def _divides(model: str, width: int, heads: int) -> None:
    if heads < 1 or width < 1 or width % heads:
        raise ConfigError(
            f"{model}(width={width}, heads={heads}): each head takes an equal part of the width, so width is a multiple"
            " of heads."
        )
