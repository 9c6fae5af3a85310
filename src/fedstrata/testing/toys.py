"""Small federations and models for the laws of methods. Everything is derived from a seed and takes under 0.1 s."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, softplus

from fedstrata.config.config import Config
from fedstrata.core import chain
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece
from fedstrata.data.federation import Federation
from fedstrata.data.partition.base import ExplicitPartition
from fedstrata.engine.assembly import RunComponents, assemble
from fedstrata.methods import find

# with batches of 4: a last batch of one sample, a client smaller than a batch, one that divides evenly
SIZES = (17, 8, 5, 12, 3, 9)
EQUAL = (8, 8, 8, 8, 8, 8)
PAIRS = (9, 9, 5, 9, 5, 5)  # of equal size in every cohort, with tails of one sample
FEATURES, CLASSES = 6, 3

Norm: TypeAlias = Literal["layer", "group", "batch"]
Toy: TypeAlias = "str | tuple[Federation, nn.Module]"


class Small(nn.Module):
    """Two hidden layers with a norm after the first, and a linear head.

    Every kind of selector matches something, and it may end early. The activation is smooth: a ReLU or a max-pool
    switches its gradient where two values are equal to rounding, and no law may depend on such a tie.
    """

    def __init__(self, norm: Norm = "layer", drop: float = 0.0) -> None:
        super().__init__()
        norms: dict[str, Callable[[], nn.Module]] = {
            "layer": lambda: nn.LayerNorm(8),
            "group": lambda: nn.GroupNorm(2, 8),
            "batch": lambda: nn.BatchNorm1d(8),
        }
        self.first = nn.Linear(FEATURES, 8)
        self.norm = norms[norm]()
        self.drop = nn.Dropout(drop) if drop else nn.Identity()  # with dropout, only clients of equal size are stacked
        self.second = nn.Linear(8, 5)
        self.head = nn.Linear(5, CLASSES)
        self.exits = {"norm": 8, "second": 5}

    def forward(self, x: Tensor, exits: int | None = None) -> Tensor:
        """Map [B, 6] to [B, 3], or to the features after so many layers."""
        out = softplus(self.norm(self.first(x)))
        if exits == 1:
            return out
        out = softplus(self.second(self.drop(out)))
        return out if exits else self.head(out)


class Images(nn.Module):
    """One convolution with its norm, mean pooling and a linear head, for 1x6x6 images; smooth like Small."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 9, CLASSES)
        self.exits = {"norm": 4 * 9}

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, 1, 6, 6] to [B, 3]."""
        out: Tensor = self.head(avg_pool2d(softplus(self.norm(self.conv(x))), 2).flatten(1))
        return out


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    """Fill a module's parameters from a local generator, independent of global ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            shift = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(shift + 0.4 * torch.randn(parameter.shape, generator=generator))
    return module


def small(norm: Norm = "layer", drop: float = 0.0) -> nn.Module:
    """Return the laws' model."""
    return filled(Small(norm, drop))


def arrays(
    sizes: Sequence[int] = SIZES, seed: int = 0, shape: tuple[int, ...] = (FEATURES,)
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (x, y, client): inputs are shifted by client, and each client has a favourite class."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    client = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(total, *shape, generator=generator) + 0.3 * client.reshape(-1, *[1] * len(shape)) / len(sizes)
    y = torch.randint(CLASSES, (total,), generator=generator)
    favourite = torch.rand(total, generator=generator) < 0.5
    return x, torch.where(favourite, client % CLASSES, y), client


def federation(
    sizes: Sequence[int] = SIZES, seed: int = 0, shape: tuple[int, ...] = (FEATURES,), **options: Any
) -> Federation:
    """Build clients of these sizes (0 is allowed), with a server test set of 30 samples."""
    x, y, _ = arrays(sizes, seed, shape)
    tx, ty, _ = arrays((30,), seed + 1, shape)
    return listed(x, y, sizes, test=(tx.numpy(), ty.numpy()), **options)


def listed(x: Tensor, y: Tensor, sizes: Sequence[int], **options: Any) -> Federation:
    """Build a federation whose clients hold consecutive stretches of these lengths."""
    options = {"testing": "server"} | options
    if min(sizes):
        return Federation.of(x.numpy(), y.numpy(), client=np.repeat(np.arange(len(sizes)), sizes), **options)
    made = Federation.of(x.numpy(), y.numpy(), partition="iid", clients=1, **options)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return dataclasses.replace(
        made,
        partition=ExplicitPartition("listed", offsets, np.arange(len(y), dtype=np.int64)),
        fingerprint=f"{made.fingerprint}{sizes}",
    )


TOYS: Mapping[str, Callable[[], tuple[Federation, nn.Module]]] = {
    "layer": lambda: (federation(), small("layer")),
    "group": lambda: (federation(), small("group")),
    "equal": lambda: (federation(EQUAL), small("layer")),
    "batch": lambda: (federation(), small("batch")),
    "dropout": lambda: (federation(PAIRS), small("layer", drop=0.3)),
    "images": lambda: (federation(shape=(1, 6, 6)), filled(Images())),
}
"""Data and model by name: three kinds of norms, equal sizes, dropout, images."""

DEFAULTS: Mapping[str, Any] = {
    "rounds": 3,
    "cohort": 3,
    "executor": "loop",
    "eval.every": 100,
    "local.epochs": 2,
    "local.batch": 4,
    "local.lr": 0.1,
    "seed": 7,
}

_known: dict[str, type[Piece]] = {}


def know(piece: type[Piece]) -> bool:
    """Let :func:`parse` find a piece that is not registered; return whether its name had another meaning before."""
    before, _known[piece.name] = _known.get(piece.name), piece
    return before is not piece


def parse(text: str) -> Method:
    """Return a method from call syntax, of registered and installed pieces, and of those of :func:`know`."""
    return chain.parse(text, lambda name: _known.get(name) or find(name).piece)


def config(**settings: Any) -> Config:
    """Return the laws' settings with changes; a length in steps replaces that in epochs."""
    values = dict(DEFAULTS) | {
        k.replace("local_", "local.").replace("eval_", "eval.").replace("gate_", "gate."): v
        for k, v in settings.items()
    }
    if values.get("local.steps") is not None:
        values["local.epochs"] = None
    return Config(**values)


def parts(method: str | Piece | Method = "fedavg", toy: Toy = "layer", **settings: Any) -> RunComponents:
    """Assemble a toy run of a method (text, piece or chain) on a toy (a name of TOYS, or (federation, module))."""
    data, module = TOYS[toy]() if isinstance(toy, str) else toy
    chain = parse(method) if isinstance(method, str) else Method() + method
    settings = {"cohort": min(DEFAULTS["cohort"], data.clients)} | settings
    return assemble(config(**settings), data, module, chain)
