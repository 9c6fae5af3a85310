"""Server optimisers: FedAvgM, FedAdagrad, FedYogi, FedAdam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstrata.core.params import Params, tmap, zeros
from fedstrata.core.piece import Piece, ServerContext, require
from fedstrata.core.plan import Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class FedAvgM(Piece):
    """Momentum on the server: v <- beta v + step, w <- w + lr v. Layers outside the step keep their velocity.

    Source: Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution", sec. 3.
    """

    source: ClassVar[str] = "Hsu et al., 2019"
    beta: float = 0.9
    lr: float = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.beta < 1, "fedavgm.beta", self.beta, "a momentum, in [0, 1) (0 is FedAvg)")
        require(self.lr > 0, "fedavgm.lr", self.lr, "the server's step size, above 0 (published: 1)")

    def init(self, setup: Setup) -> State:
        return {"velocity": zeros(setup.params)}

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        old = slot["velocity"]
        assert isinstance(old, Params)
        velocity = tmap(lambda m, d: self.beta * m + d, old.pick(step), step)
        return self.lr * velocity, {"velocity": old | velocity}


@dataclass(frozen=True)
class _Adaptive(Piece):
    """w <- w + lr m / (sqrt(second) + tau), m <- beta1 m + (1 - beta1) step; no bias correction; second starts at tau
    squared.

    Parameters only; statistics of norms are averaged.
    """

    source: ClassVar[str] = "Reddi et al., ICLR 2021, Alg. 2"
    lr: float = 0.01
    tau: float = 1e-3

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        require(self.lr > 0, f"{name}.lr", self.lr, "the server's step size, above 0, for example 0.01")
        require(self.tau > 0, f"{name}.tau", self.tau, "the adaptivity floor, above 0 (published: 0.001)")
        require(0 <= self.moments()[0] < 1, f"{name}.beta1", self.moments()[0], "a momentum, in [0, 1)")
        require(0 <= self.moments()[1] < 1, f"{name}.beta2", self.moments()[1], "a decay, in [0, 1)")

    def moments(self) -> tuple[float, float]:
        """(beta1, beta2)."""
        return 0.0, 0.0

    def second(self, old: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """The second moment after a step."""
        raise NotImplementedError(f"{type(self).__name__} says how its second moment moves")

    def init(self, setup: Setup) -> State:
        start = zeros(setup.params)
        return {"mean": start, "second": tmap(lambda z: z + self.tau**2, start)}

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        old, before = slot["mean"], slot["second"]
        assert isinstance(old, Params)
        assert isinstance(before, Params)
        beta1 = self.moments()[0]
        mean = tmap(lambda m, d: beta1 * m + (1 - beta1) * d, old.pick(step), step)
        second = tmap(self.second, before.pick(step), step)
        move = tmap(lambda m, s: self.lr * m / (s.sqrt() + self.tau), mean, second)
        return move, {"mean": old | mean, "second": before | second}


@dataclass(frozen=True)
class FedAdagrad(_Adaptive):
    """Adagrad on the server: second <- second + step^2; no momentum. ``lr`` 0.01 is INFERRED (the paper tunes it for
    each task).

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", Alg. 2.
    """

    def second(self, old: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return old + step.square()


@dataclass(frozen=True)
class _Moments(_Adaptive):
    beta1: float = 0.9
    beta2: float = 0.99

    def moments(self) -> tuple[float, float]:
        return self.beta1, self.beta2


@dataclass(frozen=True)
class FedAdam(_Moments):
    """Adam on the server: second <- beta2 second + (1 - beta2) step^2. ``lr`` 0.01 is INFERRED (the paper tunes it for
    each task).

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", Alg. 2.
    """

    def second(self, old: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return self.beta2 * old + (1 - self.beta2) * step.square()


@dataclass(frozen=True)
class FedYogi(_Moments):
    """Yogi on the server: second <- second - (1 - beta2) step^2 sign(second - step^2). ``lr`` 0.01 is INFERRED (tuned
    in the paper).

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", Alg. 2.
    """

    def second(self, old: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        square = step.square()
        return old - (1 - self.beta2) * square * torch.sign(old - square)
