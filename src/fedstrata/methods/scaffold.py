"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedstrata.core.params import Model, Params, zeros
from fedstrata.core.piece import (
    Batching,
    ClientContext,
    Contribution,
    Gradient,
    ServerContext,
    setting,
    uniform_weights,
)
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Row, no_limit
from fedstrata.methods.parts.sgd import CountsGradients, effective_steps


@dataclass(frozen=True)
class Scaffold(CountsGradients):
    """Correct local steps to g - c_i + c; client and server controls follow from where the local steps went.

    c_i' = c_i - c + (received - y) / (K' lr), with K' the local steps, or, under SGD momentum rho,
    (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho). Both server means are unweighted; c moves by the share of clients
    that took part. Statistics of norms are averaged plainly.

    Source: Karimireddy et al. 2020, Alg. 1, option II; the momentum form is that of the FedDr harness.
    """

    batching: ClassVar[Batching] = "elementwise"
    lr: float = setting(1.0, "the server's step size, above 0 (published: 1)", above=0)

    def init_server(self, setup: Setup) -> State:
        return State(control=zeros(setup.model))

    init_client = init_server

    def send(self, model: Model, ctx: ServerContext) -> tuple[Params, State]:
        return model, ctx.state

    def gradient(self, gradient: Gradient, ctx: ClientContext) -> Gradient:
        correction = ctx.down_payload.params("control") - ctx.state.params("control")
        return lambda p, b: gradient(p, b) + correction

    def upload(self, delta: Params, ctx: ClientContext) -> tuple[Params, State, State]:
        travel, old = effective_steps(ctx.steps, ctx.setup.local.momentum) * ctx.lr, ctx.state.params("control")
        change = -ctx.down_payload.params("control").pick(delta) - delta / travel
        return delta, State(control=change), State(control=old | (old.pick(delta) + change))

    def weigh(self, contributions: Sequence[Contribution], ctx: ServerContext) -> Tensor:
        return uniform_weights(contributions)

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, State]:
        old, change = ctx.state.params("control"), ctx.payload_sums.params("control")
        return self.lr * step, State(control=old | (old.pick(change) + change / len(ctx.setup.eligible)))


ROW = Row(
    Scaffold,
    "control variates against client drift",
    ("scaffold",),
    no_limit("controls are never zero after the first round", "scaffold"),
    cite=("karimireddy2020scaffold",),
    source="Karimireddy et al., ICML 2020",
    family="drift",
    advice=(
        Rule("for", advice.drifts, advice.SKEW + ": controls correct each client's drift; {s.often}"),
        advice.OLD_STATE,
        advice.NO_SKEW,
    ),
    rank=20,
)
