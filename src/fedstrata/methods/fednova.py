"""FedNova: normalised averaging for clients that take different numbers of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from fedstrata.common.errors import MethodError
from fedstrata.core.piece import Piece, Reply, ServerContext, require
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.scaffold import effective_steps


@dataclass(frozen=True)
class FedNova(Piece):
    """Each update is divided by |a_i|, how many gradients it holds, and the mean is multiplied by the mean of |a_i|.

    |a_i| is the number of local steps under SGD, [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho) under momentum rho, and
    [1 - (1 - lr mu)^tau] / (lr mu) under a proximal term mu (say the mu of the FedProx beside it). The whole is a
    choice of weights, p_i (sum_j p_j |a_j|) / |a_i|, computed in exact fractions, so that equal steps give FedAvg's own
    weights bit for bit.

    Source: Wang et al. 2020, "Tackling the Objective Inconsistency Problem", eq. 6 to 8.
    """

    source: ClassVar[str] = "Wang et al., NeurIPS 2020"
    one_phase: ClassVar[bool] = True
    mu: float = 0.0

    def __post_init__(self) -> None:
        require(self.mu >= 0, "fednova.mu", self.mu, "the proximal weight of the chain, at least 0")

    def check(self, setup: Setup) -> None:
        if setup.optimizer != "sgd":
            raise MethodError(
                f"fednova knows how SGD accumulates gradients; local.optimizer is {setup.optimizer}. Set"
                " local.optimizer=sgd."
            )
        if self.mu and setup.momentum:
            raise MethodError(
                f"fednova has no closed form for momentum ({setup.momentum}) and a proximal term ({self.mu}) together;"
                " drop one of them."
            )

    def weigh(self, replies: Sequence[Reply], slot: State, v: ServerContext) -> Tensor:
        uniform = v.setup.weighting == "uniform"
        sizes = [Fraction(1 if uniform else r.samples) for r in replies]
        amounts = [Fraction(self.amount(r.steps, v.lr, v.setup.momentum)) for r in replies]
        total = sum(sizes)
        mean = sum((s * a for s, a in zip(sizes, amounts, strict=True)), Fraction(0)) / total
        return torch.tensor(
            [float(s / total * mean / a) for s, a in zip(sizes, amounts, strict=True)], dtype=torch.float64
        )

    def amount(self, steps: int, lr: float, momentum: float) -> float:
        """|a_i|_1 for a client that took ``steps`` steps."""
        if self.mu:
            return (1 - (1 - lr * self.mu) ** steps) / (lr * self.mu)
        return effective_steps(steps, momentum)
