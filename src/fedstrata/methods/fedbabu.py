"""FedBABU: only the body is trained in federation; each client fine-tunes afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedstrata.core.params import Params
from fedstrata.core.piece import ClientContext, Piece, require
from fedstrata.core.plan import Plan, QueryResult, Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class FedBABU(Piece):
    """The head is a random initialisation, the same for all, never trained and never sent; the body is FedAvg.

    A client's own model is the global one after ``epochs`` of local training of the body and head, or of the head
    alone, at ``local.lr`` without its schedule.

    Source: Oh et al. 2022, "FedBABU: Toward Enhanced Representation for Federated Image Classification". Ten epochs as
        in the public library.
    """

    source: ClassVar[str] = "Oh et al., ICLR 2022"
    epochs: int = 10
    tune: Literal["all", "head"] = "all"

    def __post_init__(self) -> None:
        require(self.epochs >= 0, "fedbabu.epochs", self.epochs, "a number of fine-tuning epochs, at least 0")

    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        return plan.without(setup.layout.select("role:head"))

    def personalise(self, p: Params, own: State, v: ClientContext) -> Params:
        if not self.epochs:
            return p
        return v.fit(
            p,
            "tune",
            epochs=self.epochs,
            lr=v.setup.lr,
            train=v.layout.select("role:head") if self.tune == "head" else None,
        )
