"""Ditto: a private model beside the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstrata.core.params import Params, tmap
from fedstrata.core.piece import ClientContext, Gradient, Piece, require
from fedstrata.core.plan import Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class Ditto(Piece):
    """Each client keeps v_i for ever and, before the global part, steps it by grad f(v) + mu (v - w), w the received
    model.

    The global part is FedAvg and alone is sent. ``epochs`` None is the run's local length. A client that never took
    part uses the global model.

    Source: Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization", Alg. 1. mu 0.1 is
        INFERRED (the public
    library's default 0 makes v purely local training).
    """

    source: ClassVar[str] = "Li et al., ICML 2021"
    own_model: ClassVar[bool] = True
    mu: float = 0.1
    epochs: int | None = None

    def __post_init__(self) -> None:
        require(
            self.mu >= 0, "ditto.mu", self.mu, "the pull towards the global model, at least 0 (0 is local training)"
        )
        require(self.epochs is None or self.epochs >= 0, "ditto.epochs", self.epochs, "a number of epochs, at least 0")

    def init_client(self, setup: Setup) -> State:
        return {"model": setup.params}

    def receive(self, p: Params, own: State, v: ClientContext) -> tuple[Params, State]:
        start = own["model"]
        assert isinstance(start, Params)

        def pull(gradient: Gradient) -> Gradient:
            return lambda q, b: tmap(lambda g, x, w: g + self.mu * (x - w), gradient(q, b), q, v.anchor)

        return p, {"model": v.fit(start, "private", gradient=pull, epochs=self.epochs)}

    def personalise(self, p: Params, own: State, v: ClientContext) -> Params:
        model = own["model"]
        assert isinstance(model, Params)
        return p if v.fresh else model
