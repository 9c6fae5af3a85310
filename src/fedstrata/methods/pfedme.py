"""pFedMe: personal models by Moreau envelopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fedstrata.core.network import Batch
from fedstrata.core.params import Params, tmap
from fedstrata.core.piece import ClientContext, Gradient, Piece, ServerContext, require
from fedstrata.core.plan import Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class PFedMe(Piece):
    """For each batch, ``inner`` steps th <- th - lr (grad f(th) + lam (th - w) + decay th) on it, then w <- w - lam eta
    (w - th) once.

    eta is the local learning rate; th starts at the received model and is carried from batch to batch. w is sent; the
    server moves by (1 - beta) w + beta mean. A client evaluates its th; one that never took part uses the global model.
    ``lam`` 15 is INFERRED (the usual paper value; the public library has 1), ``decay`` 0.001 is the library's extra
    term, ``beta`` 1 is plain (its default 0 never moves).

    Source: Dinh et al. 2020, "Personalized Federated Learning with Moreau Envelopes", Alg. 1.
    """

    source: ClassVar[str] = "Dinh et al., NeurIPS 2020"
    own_model: ClassVar[bool] = True
    lam: float = 15.0
    inner: int = 5
    lr: float = 0.01
    decay: float = 0.001
    beta: float = 1.0

    def __post_init__(self) -> None:
        require(self.lam >= 0, "pfedme.lam", self.lam, "the weight of the envelope, at least 0")
        require(self.inner >= 1, "pfedme.inner", self.inner, "a number of inner steps, at least 1")
        require(self.lr > 0, "pfedme.lr", self.lr, "the inner step size, above 0")
        require(self.decay >= 0, "pfedme.decay", self.decay, "a weight decay, at least 0")
        require(0 < self.beta <= 1, "pfedme.beta", self.beta, "the share of the mean that the server takes, in (0, 1]")

    def init_client(self, setup: Setup) -> State:
        return {"model": setup.params}

    def step(self, p: Params, batch: Batch, gradient: Gradient, carry: Any, v: ClientContext) -> tuple[Params, Any]:
        theta = v.anchor if carry is None else carry
        for _ in range(self.inner):
            slope = gradient(theta, batch)
            theta = tmap(lambda t, g, w: t - self.lr * (g + self.lam * (t - w) + self.decay * t), theta, slope, p)
        return tmap(lambda w, t: w - self.lam * v.lr * (w - t), p, theta), theta

    def upload(self, delta: Params, own: State, v: ClientContext) -> tuple[Params, State, State]:
        assert v.end is not None
        return delta, {}, {"model": Params(v.carry.flat, v.carry.spec, buffers=v.end.buffers)}

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        return self.beta * step, slot

    def personalise(self, p: Params, own: State, v: ClientContext) -> Params:
        model = own["model"]
        assert isinstance(model, Params)
        return p if v.fresh else model
