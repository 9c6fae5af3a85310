"""How many gradients an update of SGD holds, and the base of methods that divide by that number."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.common.errors import MethodError
from fedstrata.core.layout import Layout
from fedstrata.core.piece import Piece
from fedstrata.core.plan import Plan, Setup


@dataclass(frozen=True)
class CountsGradients(Piece):
    """Base of methods that divide by the number of local steps: it refuses other optimizers and several phases."""

    def check(self, setup: Setup) -> None:
        if setup.local.optimizer != "sgd":
            raise MethodError(
                f"{self.name} counts the gradients that SGD adds up in an update; local.optimizer is"
                f" {setup.local.optimizer}. Set local.optimizer=sgd."
            )

    def check_plan(self, plan: Plan, layout: Layout) -> None:
        if any(len(one.phases) > 1 for one in (plan, *map(plan.at, plan.per_client))):
            raise MethodError(
                f"{self.name} divides by one number of local steps; this chain trains in phases. Leave {self.name}, or"
                " the piece with the phases, out."
            )


def effective_steps(steps: int, momentum: float) -> float:
    """Return how many gradients' worth of movement ``steps`` steps of SGD make.

    >>> effective_steps(3, 0.0), effective_steps(2, 0.5)
    (3, 2.5)
    """
    if not momentum:
        return steps
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
