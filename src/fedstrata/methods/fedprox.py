"""FedProx: pull local weights towards the received ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedstrata.core.params import Params
from fedstrata.core.piece import Batching, ClientContext, Gradient, Piece, setting
from fedstrata.methods.parts import advice, costs
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class FedProx(Piece):
    """Add mu/2 times the squared distance to the received weights to the local loss (parameters only, no statistics).

    The term's gradient, mu (p - received), is added in closed form: one pass over the flat vector. ``distance=plain``
    is the term of FedPart's repository: mu times the sum over tensors of the distance itself, not squared; its gradient
    at the received weights is taken as 0.

    Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", eq. 2.
    """

    batching: ClassVar[Batching] = "elementwise"
    mu: float = setting(0.01, "the weight of the proximal term, at least 0 (0 is FedAvg), for example 0.01", least=0)
    distance: Literal["squared", "plain"] = "squared"

    def gradient(self, gradient: Gradient, ctx: ClientContext) -> Gradient:
        return lambda p, b: gradient(p, b) + self.mu * SLOPES[self.distance](p - ctx.received)

    formulas = costs.proximal


def directions(p: Params) -> Params:
    """Scale every tensor [..., *shape] to length 1, or 0 where it is 0; a leading axis counts clients."""
    parts = torch.split(p.flat, list(p.spec.sizes), dim=-1)
    units = [torch.nan_to_num(part / part.norm(dim=-1, keepdim=True), nan=0.0) for part in parts]  # 0 / 0 is NaN
    return p.new(torch.cat(units, dim=-1))


SLOPES: Mapping[str, Callable[[Params], Params]] = {"squared": lambda moved: moved, "plain": directions}
"""Gradient of each distance, by how far the weights have moved."""

ROW = Row(
    FedProx,
    "proximal term towards the received weights",
    ("fedprox(mu=0.1)", "fedprox(mu=0.1, distance=plain)"),
    Limit("fedprox(mu=0)", "fedavg"),
    cite=("li2020federated",),
    source="Li et al., MLSys 2020",
    family="drift",
    advice=(
        Rule(
            "for",
            advice.drifts,
            advice.SKEW + ": its proximal term holds local models near the received one, and nothing is stored",
        ),
        advice.NO_SKEW,
    ),
    rank=10,
)
