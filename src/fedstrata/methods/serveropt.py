"""Server optimizers: FedAvgM, FedAdagrad, FedYogi, FedAdam."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.core.params import Params, tmap, zeros
from fedstrata.core.piece import Piece, ServerContext, setting
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row, no_limit


@dataclass(frozen=True)
class FedAvgM(Piece):
    """Add momentum on the server: v <- beta v + step, w <- w + lr v. Layers outside the step keep their velocity.

    Source: Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution", sec. 3.
    """

    beta: float = setting(0.9, "a momentum, in [0, 1) (0 is FedAvg)", least=0, below=1)
    lr: float = setting(1.0, "the server's step size, above 0 (published: 1)", above=0)

    def init_server(self, setup: Setup) -> State:
        return State(velocity=zeros(setup.model))

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, State]:
        old = ctx.state.params("velocity")
        velocity = self.beta * old.pick(step) + step
        return self.lr * velocity, State(velocity=old | velocity)


@dataclass(frozen=True)
class _Adaptive(Piece):
    """Set w <- w + lr m / (sqrt(second) + tau), m <- beta1 m + (1 - beta1) step; second starts at tau squared.

    There is no bias correction. Parameters only; statistics of norms are averaged.
    """

    lr: float = setting(0.01, "the server's step size, above 0, for example 0.01", above=0)
    tau: float = setting(1e-3, "the adaptivity floor, above 0 (published: 0.001)", above=0)

    def second(self, old: Tensor, step: Tensor) -> Tensor:
        """Return the second moment after a step."""
        raise NotImplementedError(f"{type(self).__name__} says how its second moment moves")

    def init_server(self, setup: Setup) -> State:
        start = zeros(setup.model)
        return State(mean=start, second=tmap(lambda z: z + self.tau**2, start))

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, State]:
        old, before = ctx.state.params("mean"), ctx.state.params("second")
        mean = tmap(lambda m, d: self.beta * m + (1 - self.beta) * d, old.pick(step), step)
        second = tmap(self.second, before.pick(step), step)
        move = tmap(lambda m, s: self.lr * m / (s.sqrt() + self.tau), mean, second)
        return move, State(mean=old | mean, second=before | second)

    @property
    def beta(self) -> float:
        """The decay of the mean."""
        return 0.0


@dataclass(frozen=True)
class FedAdagrad(_Adaptive):
    """Run Adagrad on the server: second <- second + step^2; no momentum.

    ``lr`` 0.01 is INFERRED (the paper tunes it for each task).

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", Alg. 2.
    """

    def second(self, old: Tensor, step: Tensor) -> Tensor:
        return old + step.square()


@dataclass(frozen=True)
class _Moments(_Adaptive):
    """Decay the mean by ``beta1`` and the second moment by ``beta2``."""

    beta1: float = setting(0.9, "a momentum, in [0, 1)", least=0, below=1)
    beta2: float = setting(0.99, "a decay, in [0, 1)", least=0, below=1)

    @property
    def beta(self) -> float:
        return self.beta1


@dataclass(frozen=True)
class FedAdam(_Moments):
    """Run Adam on the server: second <- beta2 second + (1 - beta2) step^2.

    ``lr`` 0.01 is INFERRED (the paper tunes it for each task).

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", Alg. 2.
    """

    def second(self, old: Tensor, step: Tensor) -> Tensor:
        return self.beta2 * old + (1 - self.beta2) * step.square()


@dataclass(frozen=True)
class FedYogi(_Moments):
    """Run Yogi on the server: second <- second - (1 - beta2) step^2 sign(second - step^2).

    ``lr`` 0.01 is INFERRED (tuned in the paper).

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", Alg. 2.
    """

    def second(self, old: Tensor, step: Tensor) -> Tensor:
        square = step.square()
        return old - (1 - self.beta2) * square * torch.sign(old - square)


REDDI = "Reddi et al., ICLR 2021, Alg. 2"
ALWAYS_DIVIDED = "the step is always divided by its size"

ROWS = (
    Row(
        FedAvgM,
        "momentum on the server",
        ("fedavgm(beta=0.9)",),
        Limit("fedavgm(beta=0, lr=1)", "fedavg"),
        cite=("hsu2019measuring",),
        source="Hsu et al., 2019",
        family="averaging",
        advice=(Rule("for", advice.sampled, advice.SAMPLED + ": momentum on the server averages over rounds"),),
        rank=150,
    ),
    Row(
        FedAdagrad,
        "Adagrad on the server",
        ("fedadagrad(lr=0.05)",),
        no_limit(ALWAYS_DIVIDED, "fedadagrad"),
        cite=("reddi2021adaptive",),
        source=REDDI,
        family="averaging",
        advice=(advice.relative("fedadam", advice.tokens),),
        rank=190,
    ),
    Row(
        FedYogi,
        "Yogi on the server",
        ("fedyogi(lr=0.05)",),
        no_limit(ALWAYS_DIVIDED, "fedyogi"),
        cite=("reddi2021adaptive",),
        source=REDDI,
        family="averaging",
        advice=(advice.relative("fedadam", advice.tokens),),
        rank=180,
    ),
    Row(
        FedAdam,
        "Adam on the server",
        ("fedadam(lr=0.05)",),
        no_limit(ALWAYS_DIVIDED, "fedadam"),
        cite=("reddi2021adaptive",),
        source=REDDI,
        family="averaging",
        advice=(
            Rule(
                "for",
                advice.tokens,
                "a model of tokens, whose entries get gradients rarely: a step size for each entry serves those",
            ),
            advice.relative("fedavgm", lambda s: advice.sampled(s) and not s.tokens, "; its rate has to be tuned"),
        ),
        rank=170,
    ),
)
