"""pFedMe: personal models by Moreau envelopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedstrata.core.network import Batch
from fedstrata.core.params import Model, Params, tmap
from fedstrata.core.piece import ClientContext, Gradient, Piece, ServerContext, setting
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.rows import Row, no_limit


@dataclass(frozen=True)
class PFedMe(Piece):
    """Take ``inner`` steps th <- th - lr (grad f(th) + lam (th - w) + decay th) on each batch, then move w once.

    w <- w - lam eta (w - th), with eta the local learning rate; th starts at the received model and continues from
    batch to batch. w is sent; the server moves by (1 - beta) w + beta mean. A client evaluates its th; one that never
    took part uses the global model. ``lam`` 15 is INFERRED (the usual paper value; the public library has 1), ``decay``
    0.001 is the library's extra term, ``beta`` 1 is plain (its default 0 never moves).

    Source: Dinh et al. 2020, "Personalized Federated Learning with Moreau Envelopes", Alg. 1.
    """

    lam: float = setting(15.0, "the weight of the envelope, at least 0", least=0)
    inner: int = setting(5, "a number of inner steps, at least 1", least=1)
    lr: float = setting(0.01, "the inner step size, above 0", above=0)
    decay: float = setting(0.001, "a weight decay, at least 0", least=0)
    beta: float = setting(1.0, "the share of the mean that the server takes, in (0, 1]", above=0, most=1)

    def init_client(self, setup: Setup) -> State:
        return State(model=setup.model)

    def step(
        self, p: Params, batch: Batch, gradient: Gradient, opt_state: Any, ctx: ClientContext
    ) -> tuple[Params, Any]:
        theta = ctx.received if opt_state is None else opt_state
        for _ in range(self.inner):
            grad = gradient(theta, batch)
            theta = tmap(lambda t, g, w: t - self.lr * (g + self.lam * (t - w) + self.decay * t), theta, grad, p)
        return tmap(lambda w, t: w - self.lam * ctx.lr * (w - t), p, theta), theta

    def upload(self, delta: Params, ctx: ClientContext) -> tuple[Params, State, State]:
        return delta, State(), State(model=Model(ctx.trained.opt_state, ctx.trained.model.statistics))

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, State]:
        return self.beta * step, ctx.state

    def personal_model(self, model: Model, ctx: ClientContext) -> Model:
        return model if ctx.first_time else ctx.state.model("model")


ROW = Row(
    PFedMe,
    "personal models by Moreau envelopes",
    ("pfedme(lam=5, inner=3)",),
    no_limit("w moves only through th, and lam=0 does not move it", "pfedme"),
    cite=("dinh2020personalized",),
    source="Dinh et al., NeurIPS 2020",
    family="private-models",
    advice=(
        advice.relative("ditto", advice.personal(advice.label_skew, advice.feature_skew)),
        advice.RARELY_SEEN,
        advice.UNTESTED,
    ),
    rank=120,
)
