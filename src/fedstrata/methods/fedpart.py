"""FedPart: one layer group a round is trained, sent and averaged; the rest stands still, equal on all clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal

from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.core.layout import Names
from fedstrata.core.piece import Piece, Plans, require
from fedstrata.core.plan import Plan, QueryResult, Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import cycle


@dataclass(frozen=True)
class FedPart(Piece):
    """``warmup`` rounds of the whole model, then each layer group for ``repeat`` rounds; this cycle is repeated to the
    end of the run.

    ``order`` is shallow to deep, the reverse, a permutation drawn anew for each cycle, a draw in each round
    (random_round), or a draw for each client in each round (random_client), where a tensor is averaged over those who
    sent it. ``first`` is the length of the first warm-up where it differs, ``together`` joins that many neighbouring
    groups, and ``cycles`` holds the run to that many whole cycles. Write fedpart behind pieces that take layers out of
    training. Norm statistics go by the run's own ``bn``: ``local`` is published, ``share`` averages them.

    INFERRED: the seeds of random orders, the order random_client as a baseline, ``together``, and ``first=0`` as the
        paper's "No Init.".

    Source: Wang et al. 2024, "Why Go Full? Elevating Federated Learning Through Partial Network Updates"; schedule and
        settings of the authors' code.
    """

    source: ClassVar[str] = "Wang et al., NeurIPS 2024"
    plans: ClassVar[Plans] = "round"
    order: Literal["sequential", "reverse", "random", "random_round", "random_client"] = "sequential"
    repeat: int = 2
    warmup: int = 5
    first: int | None = None
    cycles: int | None = None
    together: int = 1

    def __post_init__(self) -> None:
        require(
            self.repeat >= 1,
            "fedpart.repeat",
            self.repeat,
            "the rounds in a row that a layer group trains, at least 1 (published: 2)",
        )
        require(
            self.warmup >= 0,
            "fedpart.warmup",
            self.warmup,
            "the rounds of the whole model before each cycle, at least 0 (published: 5)",
        )
        require(
            self.first is None or self.first >= 0,
            "fedpart.first",
            self.first,
            "the rounds before the first cycle, at least 0",
        )
        require(
            self.cycles is None or self.cycles >= 1,
            "fedpart.cycles",
            self.cycles,
            "a number of whole cycles, at least 1",
        )
        require(
            self.together >= 1,
            "fedpart.together",
            self.together,
            "how many neighbouring layer groups train together, at least 1",
        )

    def check(self, setup: Setup) -> None:
        if setup.layout.settings:
            raise MethodError(
                "fedpart's cycles go over the layers of one network, and here it changes from stage to stage. Leave one"
                " of them out."
            )

    # the field's word
    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        blocks = self.blocks(plan.train, setup)
        wanted = self.calendar(len(blocks)).rounds(self.cycles or 1)
        if self.cycles is not None and setup.rounds != wanted:
            raise ConfigError(
                f"fedpart(cycles={self.cycles}) with {len(blocks)} layer groups takes {wanted} rounds, and rounds is"
                f" {setup.rounds}."
            )
        active = self.active(round, len(blocks), setup.seed)
        if active is None:
            return plan
        if self.order != "random_client":
            return plan.only(blocks[active], setup.layout)
        drawn = [
            blocks[random_streams.stream(setup.seed, "fedpart.client", round, place).integers(len(blocks))]
            for place in range(len(plan.cohort))
        ]
        wide = plan.only(frozenset[str]().union(*drawn), setup.layout) if drawn else plan
        owns = {place: wide.at(place).only(block, setup.layout) for place, block in enumerate(drawn)}
        return replace(
            wide,
            places={
                p: {**wide.places.get(p, {}), "train": own.train, "up": own.up, "phases": own.phases}
                for p, own in owns.items()
            },
        )

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        blocks = self.blocks(setup.layout.parameters, setup)
        groups, whole = setup.layout.groups, setup.load(setup.layout.parameters).flops
        flops = [
            [forward[name] for name, group in groups.items() if name in forward and block.issuperset(group.names)]
            for block in blocks
        ]
        sizes = [sum(g.numel for g in groups.values() if block.issuperset(g.names)) for block in blocks]
        costs = {
            "uplink over FedAvg's": cycle.sent(sizes),
            "training FLOPs over FedAvg's, idealised": cycle.idealised(len(blocks)),
            "training FLOPs over FedAvg's, suffix2x": cycle.suffix2x([sum(block) for block in flops]),
            "training FLOPs over FedAvg's, exact": cycle.exact(flops),
            "training FLOPs over FedAvg's, measured": [Fraction(setup.load(block).flops / whole) for block in blocks],
        }
        if self.order == "random_client":  # what clients draw, on average
            costs = {name: [sum(cost, Fraction(0)) / len(cost)] * len(cost) for name, cost in costs.items()}
        active = [self.active(t, len(blocks), setup.seed) for t in range(setup.rounds)]
        return {name: float(cycle.share(active, cost)) for name, cost in costs.items()}

    def blocks(self, trained: Names, setup: Setup) -> list[Names]:
        """What trains in one round, shallow to deep: layer groups, joined as asked.

        Those that are not trained at all are left out.
        """
        groups = [frozenset(g.names) for g in setup.layout.groups.values() if trained.intersection(g.names)]
        return [frozenset[str]().union(*groups[i : i + self.together]) for i in range(0, len(groups), self.together)]

    def calendar(self, groups: int) -> cycle.Calendar:
        """When which of so many groups trains."""
        return cycle.Calendar(groups, self.repeat, self.warmup, self.warmup if self.first is None else self.first)

    def active(self, t: int, groups: int, seed: int) -> int | None:
        """The group of round t, or None for the whole model."""
        found = self.calendar(groups).turn(t)
        if found is None or self.order == "sequential":
            return None if found is None else found[1]
        if self.order in ("random_round", "random_client"):
            return int(random_streams.stream(seed, "fedpart.round", t).integers(groups))
        if self.order == "random":
            return int(random_streams.stream(seed, "fedpart.cycle", found[0]).permutation(groups)[found[1]])
        return groups - 1 - found[1]
