"""Budgets: a client trains what its memory and its time allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedstrata.common.errors import MethodError
from fedstrata.core.layout import Names
from fedstrata.core.piece import Piece, Plans, ServerContext, require
from fedstrata.core.plan import Plan, Setup
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.partial import check_fixed_network, training
from fedstrata.methods.parts.rows import Limit, Row

MEANING = "a client's share of what a step of the whole model takes, in (0, 1]"


@dataclass(frozen=True)
class Budgets(Piece):
    """Train one affordable layer group on each client that cannot afford the round's layers.

    Each tensor is averaged over those who sent it. ``memory`` and ``time`` are shares, in (0, 1], of what a local step
    of the whole model takes at its peak, and of its FLOPs; client i has entry i modulo their number. Steps are measured
    (``Setup.load``), not estimated.

    INFERRED: a client on a budget takes the groups that it can afford in turn, by round plus client.

    Source: the extension that Wang et al. 2024 (FedPart) leave open: groups chosen for each client by its means.
    """

    plans: ClassVar[Plans] = "client"
    memory: tuple[float, ...] = ()
    time: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, shares in (("memory", self.memory), ("time", self.time)):
            for share in shares:
                require(0 < share <= 1, f"budgets.{name}", share, MEANING)

    def check(self, setup: Setup) -> None:
        check_fixed_network(setup.layout, "budgets measures local steps before the run")

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        shared = [frozenset(g.names) for g in ctx.layout.groups.values() if plan.download.issuperset(g.names)]
        self.refuse(shared, ctx.setup)
        changes: dict[int, Mapping[str, Any]] = {}
        taken: Names = frozenset()
        for index, client in enumerate(plan.cohort):
            mine = plan.at(index)
            if self.affords(client, mine.train, ctx.setup):
                changes[index] = {"upload": mine.upload}  # nothing of what only others train
                continue
            able = [group for group in shared if self.affords(client, group, ctx.setup)]
            group = able[(ctx.round + client) % len(able)]
            wide = replace(mine, train=mine.train | group, upload=mine.upload | group)
            changes[index], taken = training(wide.only(group, ctx.layout)), taken | group
        if not taken:
            return plan
        plan = replace(plan, upload=plan.upload | taken).change_each(changes)
        sent = frozenset[str]().union(*(plan.at(index).upload for index in range(len(plan.cohort))))
        return replace(plan, aggregate=(plan.aggregate | taken) & sent)

    def refuse(self, shared: Sequence[Names], setup: Setup) -> None:
        """Refuse a client that can train nothing, before anything is trained.

        There are as many kinds of clients as pairs of budgets.
        """
        for client in range(min(setup.clients, max(1, len(self.memory)) * max(1, len(self.time)))):
            if any(self.affords(client, names, setup) for names in (*shared, setup.layout.parameters)):
                continue
            if not shared:
                raise MethodError(
                    f"no layers are shared here, so client {client}, who cannot afford all, has none to train. Leave a"
                    " piece out."
                )
            memory, flops = (min(parts) for parts in zip(*(shares(group, setup) for group in shared), strict=True))
            raise MethodError(
                f"client {client} can train no layer group: the cheapest that is shared takes {memory:.0%} of the whole"
                f" model's memory and {flops:.0%} of its FLOPs. Give it larger budgets.memory or budgets.time."
            )

    def affords(self, client: int, names: Names, setup: Setup) -> bool:
        """Say whether a local step that trains these parameters fits this client's budgets; 1 is no limit."""
        budgets = [parts[client % len(parts)] if parts else 1.0 for parts in (self.memory, self.time)]
        taken = shares(names, setup)
        return all(budget == 1 or share <= budget for share, budget in zip(taken, budgets, strict=True))


def shares(names: Names, setup: Setup) -> tuple[float, float]:
    """Return (memory, FLOPs) of a local step that trains these parameters, over those of the whole model."""
    part, whole = setup.load(names & setup.layout.parameters), setup.load(setup.layout.parameters)
    return part.memory / whole.memory, part.flops / whole.flops


ROW = Row(
    Budgets,
    "each client trains what its memory and time allow",
    ("budgets(memory=[1.0, 0.8])", "fedpart(warmup=1, repeat=1) + budgets(time=[0.7, 1.0])"),
    Limit("budgets(memory=1, time=1)", "fedavg"),
    cite=("wang2024why",),
    source="fedstrata, after Wang et al., NeurIPS 2024",
    family="partial",
    advice=(
        Rule(
            "against",
            advice.all_head,
            "{s.model} is 1 layer group: a client that cannot afford it has nothing smaller to train",
        ),
    ),
    rank=300,
)
