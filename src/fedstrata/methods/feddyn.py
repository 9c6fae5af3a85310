"""FedDyn: dynamic regularisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedstrata.core.params import Params, tmap, zeros
from fedstrata.core.piece import (
    Batching,
    ClientContext,
    Contribution,
    Gradient,
    Piece,
    ServerContext,
    setting,
    uniform_weights,
)
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.rows import Row, no_limit


@dataclass(frozen=True)
class FedDyn(Piece):
    """Minimise F_i(y) - <h_i, y> + alpha/2 |y - w|^2 on each client, and then set h_i <- h_i - alpha (y_i - w).

    The server keeps h <- h - (alpha / m) sum over participants of (y_i - w) and sets w <- mean(y_i) - h / alpha; means
    are unweighted, m counts all eligible clients.

    Source: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", Alg. 1. alpha 0.1 or 0.01 in the
        paper.
    """

    batching: ClassVar[Batching] = "elementwise"
    alpha: float = setting(
        0.01, "the weight of the regulariser, above 0 (the server divides by it), for example 0.01", above=0
    )

    def init_server(self, setup: Setup) -> State:
        return State(drift=zeros(setup.model))

    def init_client(self, setup: Setup) -> State:
        return State(dual=zeros(setup.model))

    def gradient(self, gradient: Gradient, ctx: ClientContext) -> Gradient:
        w, dual = ctx.received, ctx.state.params("dual")
        return lambda p, b: tmap(lambda g, x, a, h: g - h + self.alpha * (x - a), gradient(p, b), p, w, dual)

    def upload(self, delta: Params, ctx: ClientContext) -> tuple[Params, State, State]:
        dual = ctx.state.params("dual")
        return delta, State(), State(dual=dual | (dual.pick(delta) - self.alpha * delta))

    def weigh(self, contributions: Sequence[Contribution], ctx: ServerContext) -> Tensor:
        return uniform_weights(contributions)

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, State]:
        drift, share = ctx.state.params("drift"), len(ctx.contributions) / len(ctx.setup.eligible)
        moved = drift.pick(step) - self.alpha * share * step
        return step - moved / self.alpha, State(drift=drift | moved)


ROW = Row(
    FedDyn,
    "dynamic regularisation",
    ("feddyn(alpha=0.1)",),
    no_limit("the server divides by alpha, so alpha=0 has no meaning", "feddyn"),
    cite=("acar2021federated",),
    source="Acar et al., ICLR 2021",
    family="drift",
    advice=(advice.relative("scaffold", advice.drifts), advice.OLD_STATE, advice.NO_SKEW),
    rank=30,
)
