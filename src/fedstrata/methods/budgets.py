"""Budgets: a client trains what its memory and its time allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedstrata.common.errors import MethodError
from fedstrata.core.layout import Names
from fedstrata.core.piece import Piece, Plans, require
from fedstrata.core.plan import Plan, QueryResult, Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class Budgets(Piece):
    """Who cannot afford the round's layers trains one layer group that it can; each tensor is averaged over those who
    sent it.

    ``memory`` and ``time`` are shares, in (0, 1], of what a local step of the whole model takes at its peak, and of its
    FLOPs; client i has entry i modulo their number. Steps are measured (``Setup.load``), not estimated. Write it behind
    fedpart and pieces that keep layers private.

    INFERRED: a client on a budget takes the groups that it can afford in turn, by round plus client.

    Source: the extension that Wang et al. 2024 (FedPart) leave open: groups chosen for each client by its means.
    """

    source: ClassVar[str] = "of our own, after Wang et al., NeurIPS 2024"
    plans: ClassVar[Plans] = "client"
    memory: tuple[float, ...] = ()
    time: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("memory", "time"):
            for share in getattr(self, name):
                require(
                    0 < share <= 1,
                    f"budgets.{name}",
                    share,
                    "a client's share of what a step of the whole model takes, in (0, 1]",
                )

    def check(self, setup: Setup) -> None:
        if setup.layout.settings:
            raise MethodError(
                "budgets measures local steps before the run, and here the network changes from stage to stage. Leave"
                " one of them out."
            )

    # the field's word
    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        shared = [frozenset(g.names) for g in setup.layout.groups.values() if plan.down.issuperset(g.names)]
        self.refuse(shared, setup)
        places, taken = dict(plan.places), frozenset[str]()
        for place, client in enumerate(plan.cohort):
            own = plan.at(place)
            if self.affords(client, own.train, setup):
                places[place] = {**places.get(place, {}), "up": own.up}  # nothing of what only others train
                continue
            able = [group for group in shared if self.affords(client, group, setup)]
            group = able[(round + client) % len(able)]
            own = replace(own, train=own.train | group, up=own.up | group).only(group, setup.layout)
            places[place] = {**places.get(place, {}), "train": own.train, "up": own.up, "phases": own.phases}
            taken |= group
        if not taken:
            return plan
        wide = replace(plan, up=plan.up | taken, places=places)
        sent = frozenset[str]().union(*(wide.at(place).up for place in range(len(plan.cohort))))
        return replace(wide, average=(plan.average | taken) & sent)

    def refuse(self, shared: Sequence[Names], setup: Setup) -> None:
        """Refuse a client that can train nothing, before anything is trained.

        There are as many kinds of clients as pairs of budgets.
        """
        everything = setup.layout.parameters
        for client in range(min(setup.clients, max(1, len(self.memory)) * max(1, len(self.time)))):
            if any(self.affords(client, names, setup) for names in (*shared, everything)):
                continue
            if not shared:
                raise MethodError(
                    f"no layers are shared here, so client {client}, who cannot afford all, has none to train. Leave a"
                    " piece out."
                )
            memory, flops = (min(parts) for parts in zip(*(self.shares(group, setup) for group in shared), strict=True))
            raise MethodError(
                f"client {client} can train no layer group: the cheapest that is shared takes {memory:.0%} of the whole"
                f" model's memory and {flops:.0%} of its FLOPs. Give it larger budgets.memory or budgets.time."
            )

    def affords(self, client: int, names: Names, setup: Setup) -> bool:
        """Whether a local step that trains these parameters fits this client's budgets; 1 is no limit."""
        budgets = [parts[client % len(parts)] if parts else 1.0 for parts in (self.memory, self.time)]
        return all(
            budget == 1 or share <= budget for share, budget in zip(self.shares(names, setup), budgets, strict=True)
        )

    def shares(self, names: Names, setup: Setup) -> tuple[float, float]:
        """(memory, FLOPs) of a local step that trains these parameters, over those of the whole model."""
        part, whole = setup.load(names & setup.layout.parameters), setup.load(setup.layout.parameters)
        return part.memory / whole.memory, part.flops / whole.flops
