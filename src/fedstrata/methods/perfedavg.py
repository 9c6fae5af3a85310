"""Per-FedAvg: a global model that is good after one local step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedstrata.core.network import Batch
from fedstrata.core.params import Params
from fedstrata.core.piece import ClientContext, Gradient, Piece, require
from fedstrata.core.state import State


@dataclass(frozen=True)
class PerFedAvg(Piece):
    """t = w - alpha grad f(w; B1), then w steps along grad f(t; B2); B1 and B2 are the halves of one batch, so
    ``local.batch`` is twice theirs.

    ``alpha`` None is the local learning rate, as in the public library (which runs its local routine twice a round; we
    do not). ``hessian_free`` corrects by [grad f(w + delta g; B3) - grad f(w - delta g; B3)] / (2 delta), g the second
    gradient, with B3 a third of the batch (INFERRED). A batch too small to be cut (a part would have no sample, or one
    where a batch norm needs two) serves as all its parts. A client's own model is the global one after one step of size
    alpha on one local batch.

    Source: Fallah et al. 2020, "Personalized Federated Learning: A Meta-Learning Approach", Alg. 1.
    """

    source: ClassVar[str] = "Fallah et al., NeurIPS 2020"
    splits: ClassVar[bool] = True
    alpha: float | None = None
    variant: Literal["first_order", "hessian_free"] = "first_order"
    delta: float = 1e-3

    def __post_init__(self) -> None:
        require(self.alpha is None or self.alpha >= 0, "perfedavg.alpha", self.alpha, "the inner step size, at least 0")
        require(
            self.delta > 0,
            "perfedavg.delta",
            self.delta,
            "the size of the finite difference, above 0, for example 0.001",
        )

    def gradient(self, gradient: Gradient, v: ClientContext) -> Gradient:
        alpha = v.lr if self.alpha is None else self.alpha
        least = 2 if v.layout.statistics.names else 1  # a batch norm cannot look at one sample

        def first_order(p: Params, b: Batch) -> Params:
            one, two = _parts(b, 2, least)
            return gradient(p - alpha * gradient(p, one), two)

        def hessian_free(p: Params, b: Batch) -> Params:
            one, two, three = _parts(b, 3, least)
            outer = gradient(p - alpha * gradient(p, one), two)
            turn = gradient(p + self.delta * outer, three) - gradient(p - self.delta * outer, three)
            return outer - (alpha / (2 * self.delta)) * turn

        return first_order if self.variant == "first_order" else hessian_free

    def personalise(self, p: Params, own: State, v: ClientContext) -> Params:
        return v.fit(p, "adapt", steps=1, lr=v.lr if self.alpha is None else self.alpha)


def _parts(b: Batch, n: int, least: int) -> list[Batch]:
    size = len(b.y) // n
    if size < least:
        return [b] * n
    return [
        Batch(x, y, None)
        for x, y in zip(torch.split(b.x[: size * n], size), torch.split(b.y[: size * n], size), strict=True)
    ]
