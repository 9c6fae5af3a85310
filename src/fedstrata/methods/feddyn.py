"""FedDyn: dynamic regularisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedstrata.core.params import Params, tmap, zeros
from fedstrata.core.piece import ClientContext, Gradient, Piece, Reply, ServerContext, require, uniform_weights
from fedstrata.core.plan import Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class FedDyn(Piece):
    """Clients minimise F_i(y) - <h_i, y> + alpha/2 |y - w|^2 and then h_i <- h_i - alpha (y_i - w).

    The server keeps h <- h - (alpha / m) sum over participants of (y_i - w) and sets w <- mean(y_i) - h / alpha; means
    are unweighted, m counts all eligible clients.

    Source: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", Alg. 1. alpha 0.1 or 0.01 in the
        paper.
    """

    source: ClassVar[str] = "Acar et al., ICLR 2021"
    elementwise: ClassVar[bool] = True
    alpha: float = 0.01

    def __post_init__(self) -> None:
        require(
            self.alpha > 0,
            "feddyn.alpha",
            self.alpha,
            "the weight of the regulariser, above 0 (the server divides by it), for example 0.01",
        )

    def init(self, setup: Setup) -> State:
        return {"drift": zeros(setup.params)}

    def init_client(self, setup: Setup) -> State:
        return {"dual": zeros(setup.params)}

    def gradient(self, gradient: Gradient, v: ClientContext) -> Gradient:
        dual = _params(v.own["dual"])
        return lambda p, b: tmap(lambda g, x, a, h: g - h + self.alpha * (x - a), gradient(p, b), p, v.anchor, dual)

    def upload(self, delta: Params, own: State, v: ClientContext) -> tuple[Params, State, State]:
        dual = _params(own["dual"])
        return delta, {}, {"dual": dual | tmap(lambda h, d: h - self.alpha * d, dual.pick(delta), delta)}

    def weigh(self, replies: Sequence[Reply], slot: State, v: ServerContext) -> Tensor:
        return uniform_weights(replies)

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        drift = _params(slot["drift"])
        share = len(v.replies) / len(v.setup.eligible)
        moved = tmap(lambda h, d: h - self.alpha * share * d, drift.pick(step), step)
        return tmap(lambda d, h: d - h / self.alpha, step, moved), {"drift": drift | moved}


def _params(value: Params | Tensor) -> Params:
    assert isinstance(value, Params)
    return value
