"""MOON: model-contrastive learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from fedstrata.core.network import Batch, Net
from fedstrata.core.params import EvalMode, Params
from fedstrata.core.piece import ClientContext, Loss, Piece, setting
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class Moon(Piece):
    """Add mu times -log(e^{cos(z, z_g)/tau} / (e^{cos(z, z_g)/tau} + e^{cos(z, z_p)/tau})), mean over the batch.

    z enters the head; z_g is the feature of the received model, z_p that of this client's model after its previous
    participation, neither with a gradient. Before a client has a previous model the term is 0. ``references`` is
    INFERRED: whether batch norms of the two reference models look at the batch ("batch") or at running statistics
    ("eval").

    Source: Li et al. 2021, "Model-Contrastive Federated Learning", eq. 3. No projection head.
    """

    mu: float = setting(1.0, "the weight of the contrastive term, at least 0 (0 is FedAvg; published: 1 to 5)", least=0)
    tau: float = setting(0.5, "a temperature, above 0 (published: 0.5)", above=0)
    references: Literal["batch", "eval"] = "batch"

    def init_client(self, setup: Setup) -> State:
        return State(previous=setup.model, seen=torch.zeros(()))

    def objective(self, loss: Loss, ctx: ClientContext) -> Loss:
        seen, mode = ctx.state.tensor("seen"), MODES[self.references]
        near, far = ctx.received.frozen(mode), ctx.state.model("previous").frozen(mode)
        return lambda p, b: loss(p, b) + self.mu * seen * contrast(ctx.net, p, near, far, b, self.tau)

    def upload(self, delta: Params, ctx: ClientContext) -> tuple[Params, State, State]:
        return delta, State(), State(previous=ctx.trained.model, seen=torch.ones(()))


MODES: Mapping[str, EvalMode] = {"batch": "batch_stats", "eval": "eval"}


def contrast(net: Net, p: Params, near: Params, far: Params, b: Batch, tau: float) -> Tensor:
    """Return the contrastive term of a batch at p with two reference models: the softplus of a gap of cosines."""
    z = net.features(p, b.x)
    with torch.no_grad():
        near_z, far_z = net.features(near, b.x), net.features(far, b.x)
    gap = cosine_similarity(z, far_z, dim=-1) - cosine_similarity(z, near_z, dim=-1)
    return b.mean(softplus(gap / tau))


ROW = Row(
    Moon,
    "contrast against the global and the client's previous features",
    ("moon(mu=1)", "moon(references=eval)"),
    Limit("moon(mu=0)", "fedavg"),
    cite=("li2021model",),
    source="Li et al., CVPR 2021",
    family="contrast",
    advice=(
        Rule(
            "for",
            advice.label_skew_on_images,
            advice.LABELS + " on images: local features are held near the global model's",
        ),
        advice.NO_SKEW,
        Rule(
            "against",
            advice.all_head,
            "{s.model} is all head: its features are the samples, alike in every model",
        ),
        advice.RARELY_SEEN,
    ),
    rank=160,
)
