"""Loss barriers of averaging, layer group by layer group: which layers of clients' models do not fit their average."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.core.params import Params
from fedstrata.diagnostics.base import ALL, PanelText, RoundSnapshot, with_tensors
from fedstrata.diagnostics.several import Several, at_least

_DATA = "on the client's own training samples; mean over clients"


@dataclass(frozen=True)
class Barrier(Several):
    """By how much a client's loss rises when one layer group g of its trained model is replaced by the clients'
    average; "all": every group at once.

    barrier_g = mean over clients i of [loss_i(y_i with the average in g) - loss_i(y_i)], with y_i where client i ended
    and loss_i its mean plain loss on up to ``most`` of its own training samples. It looks for mismatch of layers after
    averaging without any optimiser: if single groups cost little and all together much, the averaged layers do not fit
    each other; if one group costs as much as all, it is that group.

    The average goes over the clients that sent a tensor, by their samples, whatever the method's server does with it (a
    server's own rate or momentum is no part of it). A group's barrier is the mean over the clients that sent the group;
    groups that nobody sent have none. ``clients`` takes only the first so many of the cohort for losses; the average is
    of all. ``reverse`` adds the other view: every group averaged, then g alone given back to the client, as a change of
    the loss (below 0: the client's own layer is better for it).

    Norms: running statistics belong to the group of their norm, and are replaced with it where clients send them (in
        all, also those of layers that
    stood still); the others are the client's own, or as it received them. ``norms`` running evaluates with them; they
    were not estimated for models that are put together, and part of what is measured can be that. ``norms`` batch has
    batch norms look at the samples instead, all ``most`` of them at once up to 500.

    Source: layer-wise barriers, Adilova et al. 2024, "Layer-wise Linear Mode Connectivity", of two models, along a
        line; this is its end point, of
    many. That clients' own loss is taken, and the plain mean over clients, is INFERRED.
    """

    title: ClassVar[str] = "Loss barrier of averaging"
    text: ClassVar[str] = (
        f"Rise of a client's loss when layers of its trained model are replaced by the clients' average, {_DATA}. The"
        " curve: all that is averaged; the maps: one layer group alone. 0: the average serves the client as well as"
        " its own layers. After Adilova et al. 2024."
    )
    unit: ClassVar[str] = "rise of the loss"
    others: ClassVar[Mapping[str, PanelText]] = {
        "local": PanelText(
            "One layer given back",
            f"Change of a client's loss when, with all layers averaged, one layer group is its own again, {_DATA}."
            " Below 0: its own layer is better.",
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

    def look(self, look: RoundSnapshot) -> Mapping[str, float | None]:
        """The barriers, by layer group and in all; with ``reverse``, those of "local/" too."""
        mean = average(look)
        found: dict[str, list[float]] = {}
        for i in range(len(look.replies))[: self.clients]:
            for key, value in self._of(look, i, mean).items():
                found.setdefault(key, []).append(value)
        order = [ALL, *look.layout.names()]
        keys = sorted(found, key=lambda key: ("/" in key, order.index(key.removeprefix("local/"))))
        return {
            key: math.fsum(found[key]) / len(found[key]) if all(map(math.isfinite, found[key])) else None
            for key in keys
        }

    def _of(self, look: RoundSnapshot, i: int, mean: Mapping[str, Tensor]) -> dict[str, float]:
        """One client's barriers."""
        reply, own = look.replies[i], look.end(i)
        groups = {
            g.name: look.layout.group(g.name)
            for g in look.layout.groups.values()
            if any(n in reply.delta for n in g.names)
        }
        if not groups:
            return {}
        full = with_tensors(own, mean)

        def loss(p: Params) -> float:
            return look.loss(reply.client, p.frozen("batch") if self.norms == "batch" else p, self.most)

        def part(source: Params, names: frozenset[str]) -> dict[str, Tensor]:
            assert source.buffers is not None, "models come with statistics"
            return {n: source[n] if n in source else source.buffers[n] for n in names if n in mean}

        base, top = loss(own), loss(full)
        found = {ALL: top - base}
        for group, names in groups.items():
            found[group] = loss(with_tensors(own, part(full, names))) - base
            if self.reverse:
                found[f"local/{group}"] = loss(with_tensors(full, part(own, names))) - top
        return found


def average(look: RoundSnapshot) -> dict[str, Tensor]:
    """Mean of where clients ended, by name: of each tensor over those who sent it, weighted by their training samples;
    of statistics alike.

    In float64, then rounded, so that equal tensors have themselves as their mean.
    """
    total: dict[str, Tensor] = {}
    share: dict[str, int] = {}
    for reply, sent in zip(look.replies, look.sent, strict=True):
        ended = {n: sent[n] + step for n, step in reply.delta.items()} | dict(reply.statistics)
        for name, tensor in ended.items():
            own = tensor.double() * reply.samples
            total[name] = total[name] + own if name in total else own
            share[name] = share.get(name, 0) + reply.samples
    kinds = {n: p.flat.dtype for p in (look.before, look.before.buffers) if p is not None for n in p}
    return {name: (value / share[name]).to(kinds.get(name, torch.float32)) for name, value in total.items()}
