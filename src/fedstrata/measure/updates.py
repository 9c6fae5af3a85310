"""Looks at updates: how far clients pull apart, and how far the server's model moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstrata.measure.look import ALL, Look, Measure


@dataclass(frozen=True)
class Drift(Measure):
    """How far clients' updates lie from their mean, relative to it: sqrt(mean_i |d_i - d|^2) / |d|, d the plain mean of the updates d_i.

    Over the parameters that every client of the round sent, in all and by layer group. 0: all clients pull alike. Undefined for a single reply
    and where the mean is zero.

    Source: the dissimilarity B of Li et al. 2020 (FedProx), def. 3, is sqrt(E|g_i|^2) / |E g_i|; this is sqrt(B^2 - 1), taken of updates instead of
    gradients.
    """

    title: ClassVar[str] = "Client drift"
    text: ClassVar[str] = (
        "Root mean square distance of clients' updates from their mean, divided by the mean's length. 0: all clients pull alike; 3: what they "
        "disagree on is three times as long as what they agree on."
    )
    unit: ClassVar[str] = "relative to the mean update"

    def look(self, look: Look) -> Mapping[str, float | None]:
        """The ratio, by layer group and in all."""
        if len(look.replies) < 2:
            return {}
        sent = frozenset.intersection(*(frozenset(r.delta) for r in look.replies))
        spread: dict[str, float] = {}
        shared: dict[str, float] = {}
        for name in (n for n in look.layout.spec.names if n in sent):
            group = look.layout.entries[name].group
            stacked = torch.stack([r.delta[name].reshape(-1) for r in look.replies])  # [C, numel]
            mean = stacked.mean(0)
            apart = float((stacked - mean).square().sum(dtype=torch.float64)) / len(look.replies)
            along = float(mean.square().sum(dtype=torch.float64))
            for key in (ALL, group):
                spread[key] = spread.get(key, 0.0) + apart
                shared[key] = shared.get(key, 0.0) + along
        return {key: (spread[key] / shared[key]) ** 0.5 if shared[key] > 0 else None for key in spread}


@dataclass(frozen=True)
class StepSize(Measure):
    """How far the server's model moves in a round: root mean square over parameters, in all and by layer group; 0 for a group that stands still."""

    title: ClassVar[str] = "Step of the server's model"
    text: ClassVar[str] = "Root mean square change of a parameter of the server's model in one round. 0: the layer stood still."
    unit: ClassVar[str] = "change of a parameter"

    def look(self, look: Look) -> Mapping[str, float | None]:
        """The root mean square, by layer group and in all."""
        moved = look.after.flat - look.before.flat
        squares = {ALL: float(moved.square().mean(dtype=torch.float64))}
        for name, group in look.layout.groups.items():
            runs = look.layout.spec.runs(frozenset(group.names))
            total = sum(float(moved[a:b].square().sum(dtype=torch.float64)) for a, b in runs)
            if size := sum(b - a for a, b in runs):
                squares[name] = total / size
        return {key: value**0.5 for key, value in squares.items()}
