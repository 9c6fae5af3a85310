"""FedPart: one layer group a round is trained, sent and averaged; the rest keeps its values, equal on all clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Names
from fedstrata.core.piece import Piece, Plans, ServerContext, setting
from fedstrata.core.plan import Plan, Setup
from fedstrata.methods.parts import advice, cycle
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.partial import check_fixed_network, joined_groups, training
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class FedPart(Piece):
    """Train the whole model for ``warmup`` rounds, then each layer group for ``repeat`` rounds, in cycles.

    ``order`` is shallow to deep, the reverse, a permutation drawn anew for each cycle, a draw in each round
    (random_round), or a draw for each client in each round (random_client), where a tensor is averaged over those who
    sent it. ``first`` is the length of the first warm-up where it differs, ``together`` joins that many neighbouring
    groups, and ``cycles`` holds the run to that many whole cycles. Layers that other pieces take out of training have
    no turn. Norm statistics follow the run's ``bn``: ``local`` is published, ``share`` averages them.

    INFERRED: the seeds of random orders, the order random_client as a baseline, ``together``, and ``first=0`` as the
        paper's "No Init.".

    Source: Wang et al. 2024, "Why Go Full? Elevating Federated Learning Through Partial Network Updates"; schedule and
        settings of the authors' code.
    """

    plans: ClassVar[Plans] = "round"
    order: Literal["sequential", "reverse", "random", "random_round", "random_client"] = "sequential"
    repeat: int = setting(2, "the rounds in a row that a layer group trains, at least 1 (published: 2)", least=1)
    warmup: int = setting(5, "the rounds of the whole model before each cycle, at least 0 (published: 5)", least=0)
    first: int | None = setting(None, "the rounds before the first cycle, at least 0", least=0)
    cycles: int | None = setting(None, "a number of whole cycles, at least 1", least=1)
    together: int = setting(1, "how many neighbouring layer groups train together, at least 1", least=1)

    def check(self, setup: Setup) -> None:
        check_fixed_network(setup.layout, "fedpart's cycles go over the layers of one network")

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        blocks = self.blocks(plan.train, ctx.setup)
        check_cycles(self.cycles, self.calendar(len(blocks)), ctx.setup.rounds)
        active = self.active(ctx.round, len(blocks), ctx.setup.seed)
        if active is None:
            return plan
        if self.order != "random_client":
            return plan.only(blocks[active], ctx.layout)
        return each_its_block(plan, blocks, ctx)

    def blocks(self, trained: Names, setup: Setup) -> list[Names]:
        """Return what trains in one round each, shallow to deep: layer groups, joined as asked."""
        return joined_groups(setup.layout, trained, self.together)

    def calendar(self, groups: int) -> cycle.Calendar:
        """Return when which of so many groups trains."""
        return cycle.Calendar(groups, self.repeat, self.warmup, self.warmup if self.first is None else self.first)

    def active(self, t: int, groups: int, seed: int) -> int | None:
        """Return the group of round t, or None for the whole model."""
        turn = self.calendar(groups).turn(t)
        return None if turn is None else cycle.position(self.order, *turn, t, groups, seed)

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        blocks = self.blocks(setup.layout.parameters, setup)
        active = [self.active(t, len(blocks), setup.seed) for t in range(setup.rounds)]
        return cycle.formulas(active, blocks, forward, setup, mean=self.order == "random_client")


def check_cycles(cycles: int | None, calendar: cycle.Calendar, rounds: int) -> None:
    """Refuse a run that is not so many whole cycles long."""
    if cycles is not None and rounds != calendar.rounds(cycles):
        raise ConfigError(
            f"fedpart(cycles={cycles}) with {calendar.groups} layer groups takes {calendar.rounds(cycles)} rounds, and"
            f" rounds is {rounds}."
        )


def each_its_block(plan: Plan, blocks: list[Names], ctx: ServerContext) -> Plan:
    """Draw a block for each client of the cohort, and let it train that one."""
    drawn = [
        blocks[random_streams.stream(ctx.setup.seed, "fedpart.client", ctx.round, index).integers(len(blocks))]
        for index in range(len(plan.cohort))
    ]
    wide = plan.only(frozenset[str]().union(*drawn), ctx.layout) if drawn else plan
    return wide.change_each({i: training(wide.at(i).only(block, ctx.layout)) for i, block in enumerate(drawn)})


ROW = Row(
    FedPart,
    "one layer group a round is trained and sent",
    (
        "fedpart(warmup=1, repeat=1)",
        "fedpart(warmup=0, order=random)",
        "fedprox(mu=0.1) + fedpart(warmup=1, repeat=1, order=reverse)",
        "moon + fedpart(warmup=0, repeat=1, order=random_round)",
        "fedpart(warmup=1, order=random_client)",
    ),
    Limit("fedpart(warmup=0, together=1000)", "fedavg"),
    cite=("wang2024why",),
    source="Wang et al., NeurIPS 2024",
    family="partial",
    advice=(
        Rule(
            "later",
            lambda s: s.body and advice.mild(s),
            "no skew above low was measured: one layer group a round, with fewer bytes and less to compute, is claimed"
            " to gain there",
        ),
        Rule(
            "against",
            advice.all_head,
            "{s.model} is 1 layer group, and then it is FedAvg",
            "our law: one group is fedavg, bit for bit",
        ),
    ),
    rank=270,
)
