"""FedBABU: only the body is trained in federation; each client fine-tunes afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedstrata.core.params import Model
from fedstrata.core.piece import ClientContext, Piece, ServerContext, setting
from fedstrata.core.plan import Plan
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class FedBABU(Piece):
    """Train the body as FedAvg does, under a head that is random, the same for all, never trained and never sent.

    A client's personal model is the global one after ``epochs`` of local training of the body and head, or of the head
    alone, at ``local.lr`` without its schedule.

    Source: Oh et al. 2022, "FedBABU: Toward Enhanced Representation for Federated Image Classification". Ten epochs as
        in the public library.
    """

    epochs: int = setting(10, "a number of fine-tuning epochs, at least 0", least=0)
    tune: Literal["all", "head"] = "all"

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        return plan.without(ctx.layout.select("role:head"))

    def refine(self, model: Model, ctx: ClientContext) -> Model:
        if not self.epochs:
            return model
        tuned = ctx.layout.select("role:head") if self.tune == "head" else None
        return ctx.fit(model, "tune", epochs=self.epochs, lr=ctx.setup.local.lr, train=tuned)


ROW = Row(
    FedBABU,
    "body trained in federation, head random; fine-tuned by each client",
    ("fedbabu(epochs=2)",),
    Limit("fedbabu(epochs=0)", "fedrep(head_epochs=0)"),
    cite=("oh2022fedbabu",),
    source="Oh et al., ICLR 2022",
    family="private-layers",
    advice=(
        Rule(
            "for",
            lambda s: s.own_tests and s.heldout > 0 and advice.strong_label_skew(s),
            advice.LABELS
            + ", and {s.heldout} clients join later: they fine-tune a head, where methods with private heads have none"
            " for them",
        ),
        advice.relative("fedper", advice.personal(advice.strong_label_skew)),
        advice.NOTHING_SHARED,
        advice.UNTESTED,
    ),
    rank=80,
)
