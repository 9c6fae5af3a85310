"""MOON: model-contrastive learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from fedstrata.core.network import Batch
from fedstrata.core.params import Params
from fedstrata.core.piece import ClientContext, Loss, Piece, require
from fedstrata.core.plan import Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class Moon(Piece):
    """Loss plus mu times -log(e^{cos(z, z_g)/tau} / (e^{cos(z, z_g)/tau} + e^{cos(z, z_p)/tau})), mean over the batch.

    z enters the head; z_g comes from the received model, z_p from this client's own model after its previous
    participation, neither with a gradient. Before a client has a previous model the term is 0. ``references`` is
    INFERRED: whether batch norms of the two reference models look at the batch ("batch") or at running statistics
    ("eval").

    Source: Li et al. 2021, "Model-Contrastive Federated Learning", eq. 3. No projection head.
    """

    source: ClassVar[str] = "Li et al., CVPR 2021"
    mu: float = 1.0
    tau: float = 0.5
    references: Literal["batch", "eval"] = "batch"

    def __post_init__(self) -> None:
        require(
            self.mu >= 0,
            "moon.mu",
            self.mu,
            "the weight of the contrastive term, at least 0 (0 is FedAvg; published: 1 to 5)",
        )
        require(self.tau > 0, "moon.tau", self.tau, "a temperature, above 0 (published: 0.5)")

    def init_client(self, setup: Setup) -> State:
        return {"previous": setup.params, "seen": torch.zeros(())}

    def objective(self, loss: Loss, v: ClientContext) -> Loss:
        previous = v.own["previous"]
        assert isinstance(previous, Params)
        reference, past = v.anchor.frozen(self.references), previous.frozen(self.references)

        def contrast(p: Params, b: Batch) -> Tensor:
            z = v.net.features(p, b.x)
            with torch.no_grad():
                near, far = v.net.features(reference, b.x), v.net.features(past, b.x)
            gap = cosine_similarity(z, far, dim=-1) - cosine_similarity(z, near, dim=-1)
            return b.mean(softplus(gap / self.tau))

        seen = v.own["seen"]
        assert isinstance(seen, Tensor)
        return lambda p, b: loss(p, b) + self.mu * seen * contrast(p, b)

    def upload(self, delta: Params, own: State, v: ClientContext) -> tuple[Params, State, State]:
        assert v.end is not None
        return delta, {}, {"previous": v.end, "seen": torch.ones(())}
