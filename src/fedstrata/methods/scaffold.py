"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedstrata.common.errors import MethodError
from fedstrata.core.params import Params, sum_over_senders, zeros
from fedstrata.core.piece import ClientContext, Gradient, Piece, Reply, ServerContext, require, uniform_weights
from fedstrata.core.plan import CohortSlot, Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class Scaffold(Piece):
    """Local steps follow g - c_i + c; client and server controls are refreshed from where the local steps went.

    c_i' = c_i - c + (received - y) / (K' lr), with K' the local steps, or, under SGD momentum rho, (K - rho (1 - rho^K)
    / (1 - rho)) / (1 - rho). Both server means are unweighted; c moves by the share of clients that took part.
    Statistics of norms are averaged plainly.

    Source: Karimireddy et al. 2020, Alg. 1, option II; the momentum form is that of the FedDr harness.
    """

    source: ClassVar[str] = "Karimireddy et al., ICML 2020"
    elementwise: ClassVar[bool] = True
    one_phase: ClassVar[bool] = True
    lr: float = 1.0

    def __post_init__(self) -> None:
        require(self.lr > 0, "scaffold.lr", self.lr, "the server's step size, above 0 (published: 1)")

    def check(self, setup: Setup) -> None:
        if setup.optimizer != "sgd":
            raise MethodError(
                f"scaffold reads gradients off local steps of SGD; local.optimizer is {setup.optimizer}. Set"
                " local.optimizer=sgd."
            )

    def init(self, setup: Setup) -> State:
        return {"control": zeros(setup.params)}

    def init_client(self, setup: Setup) -> State:
        return {"control": zeros(setup.params)}

    def send(self, params: Params, slot: State, seat: CohortSlot, rng: object, setup: Setup) -> tuple[Params, State]:
        return params, {"control": slot["control"]}

    def gradient(self, gradient: Gradient, v: ClientContext) -> Gradient:
        correction = _params(v.extras) - _params(v.own)
        return lambda p, b: gradient(p, b) + correction

    def upload(self, delta: Params, own: State, v: ClientContext) -> tuple[Params, State, State]:
        travel = effective_steps(v.steps, v.setup.momentum) * v.lr
        old = _params(own)
        change = -(_params(v.extras).pick(delta)) - delta / travel
        return delta, {"control": change}, {"control": old | (old.pick(delta) + change)}

    def weigh(self, replies: Sequence[Reply], slot: State, v: ServerContext) -> Tensor:
        return uniform_weights(replies)

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        old = _params(slot)
        change = sum_over_senders([_params(r.mail["scaffold"]) for r in v.replies], old.spec)
        moved = old.pick(change) + change.new(change.flat / len(v.setup.eligible))
        return self.lr * step, {"control": old | moved}


def effective_steps(steps: int, momentum: float) -> float:
    """How many gradients' worth of movement ``steps`` steps of SGD make."""
    if not momentum:
        return steps
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def _params(state: State) -> Params:
    control = state["control"]
    assert isinstance(control, Params)
    return control
