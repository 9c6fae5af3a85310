"""FedNova: normalised averaging for clients that take different numbers of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from fedstrata.common.errors import MethodError
from fedstrata.core.piece import Contribution, ServerContext, setting
from fedstrata.core.plan import Setup
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row
from fedstrata.methods.parts.sgd import CountsGradients, effective_steps


@dataclass(frozen=True)
class FedNova(CountsGradients):
    """Divide each update by |a_i|, how many gradients it holds, and multiply the mean by the mean of |a_i|.

    |a_i| is the number of local steps under SGD, [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho) under momentum rho,
    and [1 - (1 - lr mu)^tau] / (lr mu) under a proximal term mu (say the mu of the FedProx beside it). The whole is a
    choice of weights, p_i (sum_j p_j |a_j|) / |a_i|, computed in exact fractions, so that equal steps give FedAvg's
    weights bit for bit.

    Source: Wang et al. 2020, "Tackling the Objective Inconsistency Problem", eq. 6 to 8.
    """

    mu: float = setting(0.0, "the proximal weight of the chain, at least 0", least=0)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if self.mu and setup.local.momentum:
            raise MethodError(
                f"fednova has no closed form for mu={self.mu} with local.momentum={setup.local.momentum}; set one to 0."
            )

    def weigh(self, contributions: Sequence[Contribution], ctx: ServerContext) -> Tensor:
        sizes = [1 if ctx.setup.weighting == "uniform" else c.samples for c in contributions]
        return normalised(sizes, [self.amount(c.steps, ctx.lr, ctx.setup.local.momentum) for c in contributions])

    def amount(self, steps: int, lr: float, momentum: float) -> float:
        """Return |a_i|_1 of a client that took ``steps`` steps."""
        return (1 - (1 - lr * self.mu) ** steps) / (lr * self.mu) if self.mu else effective_steps(steps, momentum)


def normalised(sizes: Sequence[int], amounts: Sequence[float]) -> Tensor:
    """Return p_i (sum_j p_j |a_j|) / |a_i|, with p the shares of the sizes, computed in exact fractions."""
    total, pairs = sum(sizes), [(Fraction(n), Fraction(a)) for n, a in zip(sizes, amounts, strict=True)]
    mean = sum((n * a for n, a in pairs), Fraction(0)) / total
    return torch.tensor([float(n / total * mean / a) for n, a in pairs], dtype=torch.float64)


ROW = Row(
    FedNova,
    "normalised averaging for unequal local steps",
    ("fednova", "fednova(mu=0.1) + fedprox(mu=0.1)"),
    Limit("fednova", "fedavg", uniform=True),
    cite=("wang2020tackling",),
    source="Wang et al., NeurIPS 2020",
    family="drift",
    advice=(
        Rule(
            "for",
            advice.unequal,
            "most clients take {s.low_steps} to {s.high_steps} local steps a round: updates are averaged by step, not"
            " by length",
        ),
        Rule(
            "against",
            lambda s: s.equal_steps,
            "every client takes {s.low_steps} local steps, and then it is FedAvg",
            "our law: fednova is fedavg under equal steps, bit for bit",
        ),
    ),
    rank=200,
)
