"""FedProx: pull local weights to the received ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedstrata.methods import costs
from fedstrata.params import tmap
from fedstrata.piece import Gradient, Piece, View, require
from fedstrata.plan import Setup


@dataclass(frozen=True)
class FedProx(Piece):
    """Local loss plus mu/2 times the squared distance to the received weights (parameters only, no statistics).

    The term's gradient, mu (p - anchor), is added in closed form: one pass over the flat vector.

    Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", eq. 2.
    """

    source: ClassVar[str] = "Li et al., MLSys 2020"
    elementwise: ClassVar[bool] = True
    mu: float = 0.01

    def __post_init__(self) -> None:
        require(self.mu >= 0, "fedprox.mu", self.mu, "the weight of the proximal term, at least 0 (0 is FedAvg), for example 0.01")

    def gradient(self, gradient: Gradient, v: View) -> Gradient:
        return lambda p, b: tmap(lambda g, x, a: g + self.mu * (x - a), gradient(p, b), p, v.anchor)

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        return {costs.LABEL: costs.fedprox(setup.layout.spec.total, costs.steps(setup), setup.cohort)}
