"""Runs on toys with measures: what each round showed them, and the numbers that they gave."""

from dataclasses import dataclass, replace

import torch

from fedstrata.core.layout import Entry, Layout
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Reply
from fedstrata.diagnostics.base import Measure, RoundSnapshot
from fedstrata.diagnostics.registry import build_measures
from helpers import lab


@dataclass(frozen=True)
class Keeps(Measure):
    """Keeps what it was shown."""

    snapshots: list[RoundSnapshot]

    def measure(self, snapshot):
        self.snapshots.append(snapshot)
        return {}


def looked(text, method="fedavg", toy="layer", **settings):
    """(snapshot, numbers of the measures by name) of every round of a toy run, and its engine."""
    keeps = Keeps([])
    parts = lab.parts(method, toy, **{"eval.every": 1} | settings)
    run = lab.engine(replace(parts, measures=build_measures(text) | {"keeps": keeps}))
    try:
        rows = list(run.rounds())
    finally:
        run.close()
    return list(zip(keeps.snapshots, (row["measures"] for row in rows), strict=True)), run


def layout(**groups):
    """A layout of linear weights: group name -> {name: shape}."""
    entries = [
        Entry(name, torch.Size(shape), "linear", "body", group, "linear")
        for group, members in groups.items()
        for name, shape in members.items()
    ]
    return Layout(entries)


def hand_made(
    places,
    before,
    deltas,
    *,
    sent=None,
    sizes=None,
    loss=None,
    features=None,
):
    """A snapshot without a run: float64 tensors by name in, everything that nobody asked for left empty."""
    statistics = Params.of({})
    start = Model(Params(Params.of(before).flat, places.spec), statistics)
    given = (
        [start] * len(deltas)
        if sent is None
        else [Model(Params(Params.of(one).flat, places.spec), statistics) for one in sent]
    )
    replies = [
        Reply(i, i, (sizes or [1] * len(deltas))[i], 1, Params.of(delta), statistics) for i, delta in enumerate(deltas)
    ]
    return RoundSnapshot(0, places, start, start, replies, given, start, {}, features, loss)
