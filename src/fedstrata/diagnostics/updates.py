"""Looks at updates: how far clients pull apart, and how far the server's model moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstrata.diagnostics.base import ALL, Measure, RoundSnapshot


@dataclass(frozen=True)
class Drift(Measure):
    """How far clients' updates lie from their mean, relative to it: sqrt(mean_i |d_i - d|^2) / |d|, d the plain mean of
    the updates d_i.

    In all: over the parameters that every client of the round sent. By layer group: over the clients that sent it, at
    least two. An update is relative to what its client was sent, so that FedPhoenix' resets are no part of it.
    Undefined for a single reply and where the mean is zero.

    Source: the dissimilarity B of Li et al. 2020 (FedProx), def. 3, is sqrt(E|g_i|^2) / |E g_i|; this is sqrt(B^2 - 1),
        taken of updates instead of
    gradients.
    """

    title: ClassVar[str] = "Client drift"
    text: ClassVar[str] = (
        "Root mean square distance of clients' updates from their mean, divided by the mean's length. 0: all clients"
        " pull alike; 3: what they disagree on is three times as long as what they agree on."
    )
    unit: ClassVar[str] = "relative to the mean update"

    def look(self, look: RoundSnapshot) -> Mapping[str, float | None]:
        """The ratio, by layer group and in all."""
        found: dict[str, float | None] = {}
        for key, (names, clients) in senders(look).items():
            apart = along = 0.0
            for name in names:
                stacked = torch.stack([look.replies[i].delta[name].reshape(-1) for i in clients])  # [C, numel]
                mean = stacked.mean(0)
                apart += float((stacked - mean).square().sum(dtype=torch.float64)) / len(clients)
                along += float(mean.square().sum(dtype=torch.float64))
            found[key] = (apart / along) ** 0.5 if along > 0 else None
        return found


def senders(look: RoundSnapshot) -> dict[str, tuple[list[str], list[int]]]:
    """Over which names and which replies updates are compared, by series; at least two replies each.

    "all": the parameters that every client sent, and all replies. A layer group: those of its parameters that anybody
    sent, and the replies that have all of them.
    """
    sent = [r.delta.spec.index.keys() for r in look.replies]
    if len(sent) < 2:
        return {}
    layout = look.layout
    found = {ALL: ([n for n in layout.spec.names if all(n in s for s in sent)], list(range(len(sent))))}
    for group in layout.groups.values():
        names = [n for n in group.names if any(n in s for s in sent)]
        found[group.name] = names, [i for i, s in enumerate(sent) if s >= set(names)]
    return {key: (names, clients) for key, (names, clients) in found.items() if names and len(clients) > 1}


@dataclass(frozen=True)
class StepSize(Measure):
    """How far the server's model moves in a round: root mean square over parameters, in all and by layer group.

    0 for a group that stands still.
    """

    title: ClassVar[str] = "Step of the server's model"
    text: ClassVar[str] = (
        "Root mean square change of a parameter of the server's model in one round. 0: the layer stood still."
    )
    unit: ClassVar[str] = "change of a parameter"

    def look(self, look: RoundSnapshot) -> Mapping[str, float | None]:
        """The root mean square, by layer group and in all."""
        moved = look.after.flat - look.before.flat
        squares = {ALL: float(moved.square().mean(dtype=torch.float64))}
        for name, group in look.layout.groups.items():
            runs = look.layout.spec.runs(frozenset(group.names))
            total = sum(float(moved[a:b].square().sum(dtype=torch.float64)) for a, b in runs)
            if size := sum(b - a for a, b in runs):
                squares[name] = total / size
        return {key: value**0.5 for key, value in squares.items()}
