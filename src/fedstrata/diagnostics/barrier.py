"""Measure loss barriers of averaging by layer group: which layers of clients' models do not fit their average."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.core.params import Model
from fedstrata.diagnostics.base import ALL, PanelText, RoundSnapshot, replace_tensors
from fedstrata.diagnostics.several import MultiMeasure, at_least

_DATA = "on the client's training samples; mean over clients"


@dataclass(frozen=True)
class Barrier(MultiMeasure):
    """Measure how much a client's loss rises when a layer group of its model is replaced by the clients' average.

    "all" replaces every group at once. For a layer group g,

    barrier_g = mean over clients i of [loss_i(y_i with the average in g) - loss_i(y_i)], with y_i the model that client
    i ended with and loss_i its mean plain loss on up to ``most`` of its training samples. Barriers show a mismatch of
    layers after averaging, without any optimiser: if single groups cost little and all together much, the averaged
    layers do not fit each other; if one group costs as much as all, it is that group.

    The average of a tensor is over the clients that sent it, weighted by their samples; a server's learning rate or
    momentum is no part of it. A group's barrier is the mean over the clients that sent the group; groups that no client
    sent have none. ``clients`` limits the losses to the first clients of the cohort; the average is of all. ``reverse``
    adds the opposite view: every group averaged, then g alone restored to the client's, as a change of the loss (below
    0: the client's layer is better for it).

    Norms: running statistics belong to the group of their norm, and are replaced with it where clients send them (in
    all, also those of layers that were not trained); the others are the client's, or as it received them. ``norms``
    running evaluates with these statistics. They were not estimated for models that are combined, which can be part of
    the barrier. ``norms`` batch normalises by the samples instead, all ``most`` of them at once up to 500.

    Source: layer-wise barriers, Adilova et al. 2024, "Layer-wise Linear Mode Connectivity", of two models, along a
    line; this is its end point, of many. That the loss is on the client's samples, and the plain mean over clients, are
    INFERRED.
    """

    title: ClassVar[str] = "Loss barrier of averaging"
    text: ClassVar[str] = (
        f"Rise of a client's loss when layers of its trained model are replaced by the clients' average, {_DATA}. The"
        " curve: all that is averaged; the maps: one layer group alone. 0: the average is as good for the client as the"
        " layers that it trained. After Adilova et al. 2024."
    )
    unit: ClassVar[str] = "rise of the loss"
    quantities: ClassVar[Mapping[str, PanelText]] = {
        "local": PanelText(
            "One layer restored",
            f"Change of a client's loss when, with all layers averaged, one layer group is restored to the client's,"
            f" {_DATA}. Below 0: the client's layer is better.",
            "change of the loss",
        )
    }
    most: int = 200
    clients: int | None = None
    reverse: bool = False
    norms: Literal["running", "batch"] = "running"

    def __post_init__(self) -> None:
        at_least(1, "barrier.most", self.most, "the most training samples of a client that its loss is taken on")
        at_least(
            1,
            "barrier.clients",
            1 if self.clients is None else self.clients,
            "how many clients of the cohort have their losses taken",
        )

    def measure(self, snapshot: RoundSnapshot) -> Mapping[str, float | None]:
        """Compute the barriers, by layer group and in all; with ``reverse``, those of "local/" too."""
        mean = average(snapshot)
        barriers: dict[str, list[float]] = {}
        for i in range(len(snapshot.replies))[: self.clients]:
            for key, value in self._of_client(snapshot, i, mean).items():
                barriers.setdefault(key, []).append(value)
        order = [ALL, *snapshot.layout.names()]
        keys = sorted(barriers, key=lambda key: ("/" in key, order.index(key.removeprefix("local/"))))
        return {
            key: math.fsum(barriers[key]) / len(barriers[key]) if all(map(math.isfinite, barriers[key])) else None
            for key in keys
        }

    def _of_client(self, snapshot: RoundSnapshot, i: int, mean: Mapping[str, Tensor]) -> dict[str, float]:
        """Compute one client's barriers."""
        reply, trained = snapshot.replies[i], snapshot.final_params(i)
        groups = {
            g.name: snapshot.layout.group(g.name)
            for g in snapshot.layout.groups.values()
            if any(n in reply.delta for n in g.names)
        }
        if not groups:
            return {}
        averaged = replace_tensors(trained, mean)

        def loss(p: Model) -> float:
            return snapshot.loss(reply.client, p.frozen("batch_stats") if self.norms == "batch" else p, self.most)

        def part(source: Model, names: frozenset[str]) -> dict[str, Tensor]:
            return {n: source[n] if n in source else source.statistics[n] for n in names if n in mean}

        loss_trained, loss_averaged = loss(trained), loss(averaged)
        barriers = {ALL: loss_averaged - loss_trained}
        for group, names in groups.items():
            barriers[group] = loss(replace_tensors(trained, part(averaged, names))) - loss_trained
            if self.reverse:
                restored = replace_tensors(averaged, part(trained, names))
                barriers[f"local/{group}"] = loss(restored) - loss_averaged
        return barriers


def average(snapshot: RoundSnapshot) -> dict[str, Tensor]:
    """Average the models that clients ended with, by name: of each tensor over those who sent it, by their samples.

    Statistics are averaged alike. In float64, then rounded, so that equal tensors have themselves as their mean.
    """
    total: dict[str, Tensor] = {}
    share: dict[str, int] = {}
    for reply, sent in zip(snapshot.replies, snapshot.sent, strict=True):
        trained = {n: sent[n] + step for n, step in reply.delta.items()} | dict(reply.statistics)
        for name, tensor in trained.items():
            weighted = tensor.double() * reply.samples
            total[name] = total[name] + weighted if name in total else weighted
            share[name] = share.get(name, 0) + reply.samples
    kinds = {n: p.flat.dtype for p in (snapshot.before, snapshot.before.statistics) for n in p}
    return {name: (value / share[name]).to(kinds.get(name, torch.float32)) for name, value in total.items()}
