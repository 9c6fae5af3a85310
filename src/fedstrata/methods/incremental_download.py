"""Incremental download: returning clients keep the model that they had, and are sent only what moved since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstrata.common.errors import MethodError
from fedstrata.core.layout import Names
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece, Plans, ServerContext
from fedstrata.core.plan import Plan, Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class IncrementalDownload(Piece):
    """Send a client the layer groups that moved since its last round, all of them at its first; it kept the rest.

    The model is the same. It saves downlink where few layers move (fedpart), at the price of a model stored by each
    client.

    Source: Wang et al. 2024 (FedPart), whose server sends what the client does not have yet.
    """

    name: ClassVar[str] = "incremental_download"
    plans: ClassVar[Plans] = "client"

    def check_chain(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if piece.overrides("send"):
                raise MethodError(
                    f"{self.name} has clients keep what they were sent, and {piece.name} sends what is made for one"
                    " round and client. Leave one of them out."
                )

    def init_server(self, setup: Setup) -> State:
        moved = torch.zeros(len(setup.layout.groups), dtype=torch.int64)  # round of each group's last move, from 1
        seen = torch.zeros(setup.clients, dtype=torch.int64)  # round in which each client was last sent the model
        return State(moved=moved, seen=seen)

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        changes: dict[int, dict[str, Names]] = {}
        for index, client in enumerate(plan.cohort):
            mine, stale = plan.at(index), ctx.state.tensor("moved") >= ctx.state.tensor("seen")[client]
            pairs = zip(ctx.layout.groups.values(), stale.tolist(), strict=True)
            known = frozenset(n for group, old in pairs if not old for n in group.names)
            kept = mine.client_local | (mine.download & ctx.layout.parameters)
            changes[index] = {"download": mine.download - known, "client_local": kept}
        return plan.change_each(changes)

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, State]:
        moved, seen = ctx.state.tensor("moved").clone(), ctx.state.tensor("seen").clone()
        moved[torch.tensor([any(n in step for n in g.names) for g in ctx.layout.groups.values()])] = ctx.round + 1
        seen[[c.client for c in ctx.contributions]] = ctx.round + 1
        return step, State(moved=moved, seen=seen)


ROW = Row(
    IncrementalDownload,
    "clients keep the model and are sent what moved since",
    ("incremental_download", "fedpart(warmup=1, repeat=1) + incremental_download"),
    Limit("fedpart(warmup=1, repeat=1) + incremental_download", "fedpart(warmup=1, repeat=1)"),
    cite=("wang2024why",),
    source="Wang et al., NeurIPS 2024",
    family="partial",
    advice=(
        Rule(
            "later",
            lambda s: s.body and advice.mild(s) and s.age >= 2,
            "{s.often}: behind fedpart, it is sent only the layers that moved since",
        ),
    ),
    rank=280,
)
