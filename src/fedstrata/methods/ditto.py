"""Ditto: a private model beside the global one."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.core.params import Model
from fedstrata.core.piece import ClientContext, Gradient, Piece, setting
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class Ditto(Piece):
    """Keep a model v_i on each client and step it by grad f(v) + mu (v - w) before the global part, w received.

    The global part is FedAvg and alone is sent. ``epochs`` None is the run's local length. A client that never took
    part uses the global model.

    Source: Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization", Alg. 1. mu 0.1 is
        INFERRED (the public library's default 0 makes v purely local training).
    """

    mu: float = setting(0.1, "the pull towards the global model, at least 0 (0 is local training)", least=0)
    epochs: int | None = setting(None, "a number of epochs, at least 0", least=0)

    def init_client(self, setup: Setup) -> State:
        return State(model=setup.model)

    def receive(self, model: Model, ctx: ClientContext) -> tuple[Model, State]:
        def pull(gradient: Gradient) -> Gradient:
            return lambda p, b: gradient(p, b) + self.mu * (p - ctx.received)

        return model, State(model=ctx.fit(ctx.state.model("model"), "private", gradient=pull, epochs=self.epochs))

    def personal_model(self, model: Model, ctx: ClientContext) -> Model:
        return model if ctx.first_time else ctx.state.model("model")


ROW = Row(
    Ditto,
    "private model pulled towards the global one",
    ("ditto(mu=0.5)",),
    Limit("ditto(mu=0.5)", "fedavg", shared_only=True),
    cite=("li2021ditto",),
    source="Li et al., ICML 2021",
    family="private-models",
    advice=(
        Rule(
            "for",
            advice.personal(advice.label_skew, advice.feature_skew),
            advice.SKEW + ", and clients test themselves: a private model beside the global one",
        ),
        advice.RARELY_SEEN,
        advice.UNTESTED,
    ),
    rank=60,
)
