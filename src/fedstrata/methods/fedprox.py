"""FedProx: pull local weights to the received ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedstrata.core.params import Params, tmap
from fedstrata.core.piece import ClientContext, Gradient, Piece, require
from fedstrata.core.plan import Setup
from fedstrata.methods.parts import costs


@dataclass(frozen=True)
class FedProx(Piece):
    """Local loss plus mu/2 times the squared distance to the received weights (parameters only, no statistics).

    The term's gradient, mu (p - anchor), is added in closed form: one pass over the flat vector. ``distance=plain`` is
    the term of FedPart's repository, mu times the sum over tensors of the distance itself, not squared; its gradient at
    the received weights is taken as 0.

    Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", eq. 2.
    """

    source: ClassVar[str] = "Li et al., MLSys 2020"
    elementwise: ClassVar[bool] = True
    mu: float = 0.01
    distance: Literal["squared", "plain"] = "squared"

    def __post_init__(self) -> None:
        require(
            self.mu >= 0,
            "fedprox.mu",
            self.mu,
            "the weight of the proximal term, at least 0 (0 is FedAvg), for example 0.01",
        )

    def gradient(self, gradient: Gradient, v: ClientContext) -> Gradient:
        if self.distance == "plain":
            return lambda p, b: gradient(p, b) + self.mu * directions(p - v.anchor)
        return lambda p, b: tmap(lambda g, x, a: g + self.mu * (x - a), gradient(p, b), p, v.anchor)

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        return {costs.LABEL: costs.fedprox(setup.layout.spec.total, costs.steps(setup), setup.cohort)}


def directions(p: Params) -> Params:
    """Every tensor [..., *shape] at length 1, or 0 where it is 0; a leading axis counts clients."""
    parts = torch.split(p.flat, list(p.spec.sizes), dim=-1)
    units = [torch.nan_to_num(part / part.norm(dim=-1, keepdim=True), nan=0.0) for part in parts]  # 0 / 0 is no number
    return p.new(torch.cat(units, dim=-1))
