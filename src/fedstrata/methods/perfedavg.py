"""Per-FedAvg: a global model that is good after one local step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedstrata.core.network import Batch
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Batching, ClientContext, Gradient, Piece, setting
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Row, no_limit


@dataclass(frozen=True)
class PerFedAvg(Piece):
    """Step w along grad f(t; B2) at t = w - alpha grad f(w; B1); B1 and B2 are the halves of one batch.

    So ``local.batch`` is twice theirs. ``alpha`` None is the local learning rate, as in the public library (which runs
    its local routine twice a round; we do not). ``hessian_free`` corrects by
    [grad f(w + delta g; B3) - grad f(w - delta g; B3)] / (2 delta), g the second gradient, with B3 a third of the batch
    (INFERRED). A batch too small to be cut (a part would have no sample, or one where a batch norm needs two) serves as
    all its parts. A client's personal model is the global one after one step of size alpha on one local batch.

    Source: Fallah et al. 2020, "Personalized Federated Learning: A Meta-Learning Approach", Alg. 1.
    """

    batching: ClassVar[Batching] = "splits"
    alpha: float | None = setting(None, "the inner step size, at least 0", least=0)
    variant: Literal["first_order", "hessian_free"] = "first_order"
    delta: float = setting(1e-3, "the size of the finite difference, above 0, for example 0.001", above=0)

    def gradient(self, gradient: Gradient, ctx: ClientContext) -> Gradient:
        alpha, delta, hessian_free = self.size(ctx), self.delta, self.variant == "hessian_free"
        least = 2 if ctx.layout.statistics.names else 1  # a batch norm cannot look at one sample

        def meta(p: Params, b: Batch) -> Params:
            parts = _parts(b, 3 if hessian_free else 2, least)
            outer = gradient(p - alpha * gradient(p, parts[0]), parts[1])
            if not hessian_free:
                return outer
            turn = gradient(p + delta * outer, parts[2]) - gradient(p - delta * outer, parts[2])
            return outer - (alpha / (2 * delta)) * turn

        return meta

    def refine(self, model: Model, ctx: ClientContext) -> Model:
        return ctx.fit(model, "adapt", steps=1, lr=self.size(ctx))

    def size(self, ctx: ClientContext) -> float:
        """Return the inner step size."""
        return ctx.lr if self.alpha is None else self.alpha


def _parts(b: Batch, n: int, least: int) -> list[Batch]:
    size = len(b.y) // n
    if size < least:
        return [b] * n
    x, y = torch.split(b.x[: size * n], size), torch.split(b.y[: size * n], size)
    return [Batch(*part, None) for part in zip(x, y, strict=True)]


ROW = Row(
    PerFedAvg,
    "meta-learning: good after one local step",
    ("perfedavg", "perfedavg(variant=hessian_free, delta=0.1)"),
    no_limit("each step reads half of its batch", "perfedavg"),
    cite=("fallah2020personalized",),
    source="Fallah et al., NeurIPS 2020",
    family="private-models",
    advice=(
        advice.relative("finetune", advice.personal(advice.label_skew, advice.feature_skew)),
        Rule("against", advice.tiny, "each step reads half of its batch, and " + advice.THIN, "arithmetic"),
        advice.UNTESTED,
    ),
    rank=130,
)
