"""Returning clients keep the model that they had, and are sent only what moved since."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedstrata.core.params import Params
from fedstrata.core.piece import Piece, Plans, ServerContext
from fedstrata.core.plan import Plan, QueryResult, Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class Returning(Piece):
    """A client is sent the layer groups that moved since its last round, all of them at its first; the rest it has
    kept. The model is the same.

    It saves downlink where few layers move (fedpart), at the price of a model stored by each client. Write it last.

    Source: Wang et al. 2024 (FedPart), whose server sends what the client does not have yet.
    """

    source: ClassVar[str] = "Wang et al., NeurIPS 2024"
    one_start: ClassVar[bool] = True
    plans: ClassVar[Plans] = "client"

    def init(self, setup: Setup) -> State:
        return {
            "moved": torch.zeros(
                len(setup.layout.groups), dtype=torch.int64
            ),  # the round, counted from 1, in which each group moved last
            "seen": torch.zeros(
                setup.clients, dtype=torch.int64
            ),  # the round in which each client was last sent the model; 0 is never
        }

    # the field's word
    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        seen, groups = _tensor(slot["seen"]), list(setup.layout.groups.values())
        places = dict(plan.places)
        for place, client in enumerate(plan.cohort):
            own, stale = plan.at(place), (_tensor(slot["moved"]) >= seen[client]).tolist()
            known = frozenset(n for group, moved in zip(groups, stale, strict=True) if not moved for n in group.names)
            places[place] = {
                **places.get(place, {}),
                "down": own.down - known,
                "keep": own.keep | (own.down & setup.layout.parameters),
            }
        return replace(plan, places=places)

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        moved, seen = _tensor(slot["moved"]).clone(), _tensor(slot["seen"]).clone()
        for position, group in enumerate(v.layout.groups.values()):
            if any(name in step for name in group.names):
                moved[position] = v.round + 1
        seen[[reply.client for reply in v.replies]] = v.round + 1
        return step, {"moved": moved, "seen": seen}


def _tensor(value: Params | Tensor) -> Tensor:
    assert isinstance(value, Tensor)
    return value
