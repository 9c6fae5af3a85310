"""FedCross: the server keeps one model a place, and crosses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.params import Params
from fedstrata.piece import Piece, Reply, ServerView, require, uniform_weights
from fedstrata.plan import Seat, Setup
from fedstrata.states import State

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True)
class FedCross(Piece):
    """Place j trains model j on its client; then w_j <- alpha v_j + (1 - alpha) v_co(j), v what came back. The server's model is the mean of all w_j.

    ``partner`` order takes the other models in turn, co(j) = j + 1 + (t mod (K - 1)), counted round; ``partner`` unlike takes the one with the lowest
    cosine. A place whose reply is missing keeps its model and is nobody's partner. Norm statistics are averaged over places and shared.

    Source: Hu et al. 2024, "FedCross: Towards Accurate Federated Learning via Multi-Model Cross-Aggregation"; alpha 0.99.
    ``partner`` is INFERRED in how it takes turns.
    """

    source: ClassVar[str] = "Hu et al., ICDE 2024"
    needs: ClassVar[Literal["sum", "individuals"]] = "individuals"
    alpha: float = 0.99
    partner: Literal["order", "unlike"] = "order"

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "fedcross.alpha", self.alpha, "a model's own part when it is crossed, in [0, 1] (published: 0.99)")

    def init(self, setup: Setup) -> State:
        return {f"model/{place}": _bare(setup.params) for place in range(setup.cohort)}

    def send(self, params: Params, slot: State, seat: Seat, rng: Generator, setup: Setup) -> tuple[Params, State]:
        model = slot.get(f"model/{seat.place}")
        return (params.new(model.flat) if isinstance(model, Params) else params), {}

    def weigh(self, replies: Sequence[Reply], slot: State, v: ServerView) -> Tensor:
        return uniform_weights(replies)

    def reduce(self, replies: Sequence[Reply], weights: Tensor, slot: State, v: ServerView) -> tuple[Params, State]:
        names = v.plan.average & v.layout.parameters
        back = {r.place: sent.pick(r.delta).pick(names) + r.delta.pick(names) for r, sent in zip(replies, v.sent, strict=True)}
        models: State = dict(slot)
        for place, own in back.items():
            other = back[self._partner(place, back, v.round)]
            crossed = own.new(self.alpha * own.flat + (1 - self.alpha) * other.flat)
            models[f"model/{place}"] = _params(slot, place) | Params(crossed.flat, crossed.spec)
        total = torch.stack([_params(models, place).pick(names).flat for place in range(len(slot))])  # [K, P]
        mean = total.mean(0)
        return Params(mean - v.params.pick(names).flat, v.layout.spec.only(names)), models

    def _partner(self, place: int, back: dict[int, Params], t: int) -> int:
        others = [p for p in back if p != place]
        if not others:
            return place
        if self.partner == "order":
            later = [p for p in others if p > place] + [p for p in others if p < place]
            return later[t % len(later)]
        own = back[place].flat
        return min(others, key=lambda p: float(torch.nn.functional.cosine_similarity(own, back[p].flat, dim=0)))


def _bare(p: Params) -> Params:
    return Params(p.flat, p.spec)


def _params(state: State, place: int) -> Params:
    model = state[f"model/{place}"]
    assert isinstance(model, Params)
    return model
