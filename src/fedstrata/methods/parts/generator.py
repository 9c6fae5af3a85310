"""A generator of features: it maps a label and noise to what enters a classifier's head.

The heads of several models teach it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, linear

from fedstrata.core.layout import Layout
from fedstrata.core.params import Params

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Lessons:
    """The settings under which a generator is taught.

    Attributes:
        steps: of a fresh Adam; lr: its step size; decay: its L2 term.
        batch: labels drawn for a step.
        diversity: weight of the term against equal features.
        shares: "sample" weighs each drawn label by the client's share of it, "mean" all of them by the mean share.
    """

    steps: int
    lr: float
    decay: float
    batch: int
    diversity: float
    shares: Literal["sample", "mean"]


def width(layout: Layout, classes: int) -> int | None:
    """Count the features that enter the head; None where that is not one linear layer with an output for each class."""
    matrices = [
        layout.entries[n].shape
        for n in layout.select("role:head")
        if n in layout.spec.index and len(layout.entries[n].shape) > 1
    ]
    return int(matrices[0][1]) if len(matrices) == 1 and len(matrices[0]) == 2 and matrices[0][0] == classes else None


def fresh(latent: int, classes: int, hidden: int, features: int, draws: torch.Generator) -> Params:
    """Return linear, batch norm, ReLU, linear; linear layers are U(-1 / sqrt(inputs), 1 / sqrt(inputs)), as in torch.

    The first has no bias: the norm behind it removes it again, and Adam would enlarge the rounding of its gradient, 0,
    to whole steps.
    """

    def uniform(inputs: int, *shape: int) -> Tensor:
        return torch.rand(shape, generator=draws).mul_(2).sub_(1).div_(math.sqrt(inputs))

    inputs = latent + classes
    norm = {"norm.weight": torch.ones(hidden), "norm.bias": torch.zeros(hidden)}
    first = {"first.weight": uniform(inputs, hidden, inputs)}
    last = {"last.weight": uniform(hidden, features, hidden), "last.bias": uniform(hidden, features)}
    return Params.of({**first, **norm, **last, "norm.mean": torch.zeros(hidden), "norm.var": torch.ones(hidden)})


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Map [B] labels to [B, classes] of 0 and 1."""
    return (y.unsqueeze(-1) == torch.arange(classes)).to(torch.get_default_dtype())


def features(generator: Params, noise: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return [B, features] for noise [B, latent] and labels [B], with running statistics."""
    hidden = linear(torch.cat([noise, one_hot(y, classes)], -1), generator["first.weight"])
    scale = generator["norm.weight"] * torch.rsqrt(generator["norm.var"] + 1e-5)
    hidden = (hidden - generator["norm.mean"]) * scale + generator["norm.bias"]
    return linear(hidden.relu(), generator["last.weight"], generator["last.bias"])


def taught(
    generator: Params,
    heads: Sequence[Head],
    counts: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    lessons: Lessons,
    draws: torch.Generator,
) -> Params:
    """Return the generator after lessons by the heads of several clients.

    The loss of a step is the sum over clients of mean(CE(head_i(z), y) * share_i(y)), plus the term of
    :func:`likeness`. Labels are uniform over those of which some client has two samples; where there is no such label,
    the generator stays as it is.

    Args:
        generator: from :func:`fresh`, or an earlier round.
        heads: features [B, d] -> output [B, classes], of the clients.
        counts: [clients, classes] training labels.
        loss: (output [B, classes], y [B]) -> [B].
        lessons: see there.
        draws: labels and noise come from it.
    """
    labels = (counts >= 2).any(0).nonzero().flatten()
    if not len(labels):
        return generator
    shares = counts / counts.sum(0).clamp(min=1)  # [clients, classes]
    parts = {n: t.detach().clone().requires_grad_(n not in ("norm.mean", "norm.var")) for n, t in generator.items()}
    classes, latent = counts.shape[1], parts["first.weight"].shape[1] - counts.shape[1]
    adam = torch.optim.Adam([t for t in parts.values() if t.requires_grad], lr=lessons.lr, weight_decay=lessons.decay)
    for _ in range(lessons.steps):
        y = labels[torch.randint(len(labels), (lessons.batch,), generator=draws)]
        noise = torch.rand(lessons.batch, latent, generator=draws)
        hidden = linear(torch.cat([noise, one_hot(y, classes)], 1), parts["first.weight"])
        hidden = batch_norm(
            hidden, parts["norm.mean"], parts["norm.var"], parts["norm.weight"], parts["norm.bias"], training=True
        )
        z = linear(hidden.relu(), parts["last.weight"], parts["last.bias"])
        each = torch.stack([loss(head(z), y) for head in heads])  # [clients, B]
        weights = shares[:, y]
        mistaught = (each * weights).mean(1) if lessons.shares == "sample" else each.mean(1) * weights.mean(1)
        adam.zero_grad()
        torch.autograd.backward(mistaught.sum() + lessons.diversity * likeness(noise, z))
        adam.step()
    return Params.of(parts)


def likeness(noise: Tensor, z: Tensor) -> Tensor:
    """Return exp(-mean over all ordered pairs a, b of mean (noise_a - noise_b)^2 times mean |z_a - z_b|).

    It is 1 where all features are equal.

    Args:
        noise: [B, latent].
        z: [B, features].
    """
    far = torch.cdist(noise, noise, compute_mode="donot_use_mm_for_euclid_dist").square() / noise.shape[1]  # [B, B]
    apart = torch.cdist(z, z, p=1) / z.shape[1]
    return torch.exp(-(far * apart).mean())
