"""Measure updates: how far those of clients differ, and how far the server's model moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstrata.diagnostics.base import ALL, Measure, RoundSnapshot


@dataclass(frozen=True)
class Drift(Measure):
    """Measure how far clients' updates lie from their mean, relative to its length.

    This is sqrt(mean_i |d_i - d|^2) / |d|, with d the plain mean of the updates d_i. In all: over the parameters that
    every client of the round sent. By layer group: over the clients that sent it, at least two. An update is the
    difference from what its client received, and thus excludes FedPhoenix' resets. Undefined for a single reply and
    where the mean is zero.

    Source: the dissimilarity B of Li et al. 2020 (FedProx), def. 3, is sqrt(E|g_i|^2) / |E g_i|; this is
    sqrt(B^2 - 1), of updates instead of gradients.
    """

    title: ClassVar[str] = "Client drift"
    text: ClassVar[str] = (
        "Root mean square distance of clients' updates from their mean, divided by the mean's length. 0: all clients"
        " agree; 3: what they disagree on is three times as long as what they agree on."
    )
    unit: ClassVar[str] = "relative to the mean update"

    def measure(self, snapshot: RoundSnapshot) -> Mapping[str, float | None]:
        """Compute the ratio, by layer group and in all."""
        ratios: dict[str, float | None] = {}
        for key, (names, clients) in senders(snapshot).items():
            apart = along = 0.0
            for name in names:
                stacked = torch.stack([snapshot.replies[i].delta[name].reshape(-1) for i in clients])  # [C, numel]
                mean = stacked.mean(0)
                apart += float((stacked - mean).square().sum(dtype=torch.float64)) / len(clients)
                along += float(mean.square().sum(dtype=torch.float64))
            ratios[key] = (apart / along) ** 0.5 if along > 0 else None
        return ratios


def senders(snapshot: RoundSnapshot) -> dict[str, tuple[list[str], list[int]]]:
    """Select the names and the replies whose updates are compared, by series; at least two replies each.

    "all": the parameters that every client sent, and all replies. A layer group: its parameters that at least one
    client sent, and the replies that have all of them.
    """
    sent = [r.delta.spec.index.keys() for r in snapshot.replies]
    if len(sent) < 2:
        return {}
    layout = snapshot.layout
    series = {ALL: ([n for n in layout.spec.names if all(n in s for s in sent)], list(range(len(sent))))}
    for group in layout.groups.values():
        names = [n for n in group.names if any(n in s for s in sent)]
        series[group.name] = names, [i for i, s in enumerate(sent) if s >= set(names)]
    return {key: (names, clients) for key, (names, clients) in series.items() if names and len(clients) > 1}


@dataclass(frozen=True)
class StepSize(Measure):
    """Measure how far the server's model moves in a round: root mean square over parameters, in all and by layer group.

    0 for a group that does not change.
    """

    title: ClassVar[str] = "Step of the server's model"
    text: ClassVar[str] = (
        "Root mean square change of a parameter of the server's model in one round. 0: the layer did not change."
    )
    unit: ClassVar[str] = "change of a parameter"

    def measure(self, snapshot: RoundSnapshot) -> Mapping[str, float | None]:
        """Compute the root mean square, by layer group and in all."""
        moved = snapshot.after.flat - snapshot.before.flat
        squares = {ALL: float(moved.square().mean(dtype=torch.float64))}
        for name, group in snapshot.layout.groups.items():
            runs = snapshot.layout.spec.runs(frozenset(group.names))
            total = sum(float(moved[a:b].square().sum(dtype=torch.float64)) for a, b in runs)
            if size := sum(b - a for a, b in runs):
                squares[name] = total / size
        return {key: value**0.5 for key, value in squares.items()}
