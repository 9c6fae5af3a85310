"""FedCross: the server keeps one model a place, and crosses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.common import random_streams
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece, Reply, ServerContext, require, uniform_weights
from fedstrata.core.plan import CohortSlot, Setup
from fedstrata.core.state import State

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True)
class FedCross(Piece):
    """Each model trains on one client; then w_j <- alpha v_j + (1 - alpha) v_co(j), v what came back. The server's
    model is the mean of all w_j.

    Which place gets which model is drawn anew for each round, so that models move between clients where all take part,
    too. ``partner`` order, the publication's in-order choice, takes the other models in turn: co(j) = j + 1 + (t mod (K
    - 1)), counted round, so that in K - 1 rounds each model meets all others. ``partner`` unlike takes the one with the
    lowest cosine. A model whose reply is missing stays, and is nobody's partner. Norm statistics are averaged over
    places and shared.

    Source: Hu et al. 2024, "FedCross: Towards Accurate Federated Learning via Multi-Model Cross-Aggregation"; alpha
        0.99. The turns of order are
    those of public implementations.
    """

    source: ClassVar[str] = "Hu et al., ICDE 2024"
    needs: ClassVar[Literal["sum", "individuals"]] = "individuals"
    alpha: float = 0.99
    partner: Literal["order", "unlike"] = "order"

    def __post_init__(self) -> None:
        require(
            0 <= self.alpha <= 1,
            "fedcross.alpha",
            self.alpha,
            "a model's own part when it is crossed, in [0, 1] (published: 0.99)",
        )

    def init(self, setup: Setup) -> State:
        return {f"model/{j}": _bare(setup.params) for j in range(setup.cohort)}

    def send(self, params: Params, slot: State, seat: CohortSlot, rng: Generator, setup: Setup) -> tuple[Params, State]:
        if seat.place < 0:
            return params, {}
        return params.new(_params(slot, _dealt(setup, seat.round)[seat.place]).flat), {}

    def weigh(self, replies: Sequence[Reply], slot: State, v: ServerContext) -> Tensor:
        return uniform_weights(replies)

    def reduce(self, replies: Sequence[Reply], weights: Tensor, slot: State, v: ServerContext) -> tuple[Params, State]:
        names = v.plan.average & v.layout.parameters
        dealt = _dealt(v.setup, v.round)
        back = {
            dealt[r.place]: _moved(sent.pick(names), r.delta.pick(names))
            for r, sent in zip(replies, v.sent, strict=True)
        }
        models: State = dict(slot)
        for j, own in back.items():
            other = back[self._partner(j, back, v.round)]
            crossed = own.new(self.alpha * own.flat + (1 - self.alpha) * other.flat)
            models[f"model/{j}"] = _params(slot, j) | Params(crossed.flat, crossed.spec)
        total = torch.stack([_params(models, j).pick(names).flat for j in range(len(slot))])  # [K, P]
        mean = total.mean(0)
        return Params(mean - v.params.pick(names).flat, v.layout.spec.only(names)), models

    def _partner(self, j: int, back: dict[int, Params], t: int) -> int:
        others = sorted(k for k in back if k != j)
        if not others:
            return j
        if self.partner == "order":
            later = [k for k in others if k > j] + [k for k in others if k < j]
            return later[t % len(later)]
        own = back[j].flat
        return min(others, key=lambda k: float(torch.nn.functional.cosine_similarity(own, back[k].flat, dim=0)))


def _dealt(setup: Setup, t: int) -> list[int]:
    """The model of each place."""
    return [int(j) for j in random_streams.stream(setup.seed, "fedcross.deal", t).permutation(setup.cohort)]


def _moved(model: Params, delta: Params) -> Params:
    """A client's model; tensors that it did not send are as they were sent to it."""
    return model | (model.pick(delta) + delta)


def _bare(p: Params) -> Params:
    return Params(p.flat, p.spec)


def _params(state: State, j: int) -> Params:
    model = state[f"model/{j}"]
    assert isinstance(model, Params)
    return model
