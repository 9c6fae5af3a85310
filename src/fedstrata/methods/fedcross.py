"""FedCross: the server keeps one model for each cohort index, and crosses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedstrata.common import random_streams
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Contribution, Piece, Reply, ServerContext, setting, uniform_weights
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Row, no_limit


@dataclass(frozen=True)
class FedCross(Piece):
    """Train each of K models on one client; then set w_j <- alpha v_j + (1 - alpha) v_co(j), v what came back.

    The server's model is the mean of all w_j. Which client gets which model is drawn anew for each round, so that
    models move between clients where all take part, too. ``partner`` order, the publication's in-order choice, takes
    the other models in turn: co(j) = j + 1 + (t mod (K - 1)), counted round, so that in K - 1 rounds each model meets
    all others. ``partner`` unlike takes the one with the lowest cosine. A model whose reply is missing stays, and is no
    model's partner. Norm statistics are averaged over the cohort and shared.

    Source: Hu et al. 2024, "FedCross: Towards Accurate Federated Learning via Multi-Model Cross-Aggregation"; alpha
        0.99. The turns of order are those of public implementations.
    """

    alpha: float = setting(
        0.99, "a model's part in its cross with another, in [0, 1] (published: 0.99)", least=0, most=1
    )
    partner: Literal["order", "unlike"] = "order"

    def init_server(self, setup: Setup) -> State:
        return State({f"model/{j}": setup.model.params for j in range(setup.cohort)})

    def send(self, model: Model, ctx: ServerContext) -> tuple[Params, State]:
        if not ctx.slot.training:
            return model, State()
        j = dealt(ctx)[ctx.slot.cohort_index]
        return model.new(ctx.state.params(f"model/{j}").flat), State()

    def weigh(self, contributions: Sequence[Contribution], ctx: ServerContext) -> Tensor:
        return uniform_weights(contributions)

    def reduce(self, replies: Sequence[Reply], weights: Tensor, ctx: ServerContext) -> tuple[Params, State]:
        names, order = ctx.plan.aggregate & ctx.layout.parameters, dealt(ctx)
        back = {
            order[reply.cohort_index]: end_of(sent.pick(names), reply.delta.pick(names))
            for reply, sent in zip(replies, ctx.sent, strict=True)
        }
        models = State(ctx.state)
        for j, model in back.items():
            other = back[self._partner(j, back, ctx.round)]
            models[f"model/{j}"] = ctx.state.params(f"model/{j}") | (self.alpha * model + (1 - self.alpha) * other)
        mean = torch.stack([models.params(f"model/{j}").pick(names).flat for j in range(len(models))]).mean(0)  # [P]
        return Params(mean - ctx.model.pick(names).flat, ctx.layout.spec.only(names)), models

    def _partner(self, j: int, back: dict[int, Params], t: int) -> int:
        others = sorted(k for k in back if k != j)
        if not others:
            return j
        if self.partner == "order":
            later = [k for k in others if k > j] + [k for k in others if k < j]
            return later[t % len(later)]
        mine = back[j].flat
        return min(others, key=lambda k: float(torch.nn.functional.cosine_similarity(mine, back[k].flat, dim=0)))


def dealt(ctx: ServerContext) -> list[int]:
    """Return which model each cohort index trains in this round."""
    rng = random_streams.stream(ctx.setup.seed, "fedcross.deal", ctx.round)
    return [int(j) for j in rng.permutation(ctx.setup.cohort)]


def end_of(model: Params, delta: Params) -> Params:
    """Return a client's model; tensors that it did not send are as they were sent to it."""
    return model | (model.pick(delta) + delta)


ROW = Row(
    FedCross,
    "one model for each cohort index, crossed after each round",
    ("fedcross(alpha=0.8)", "fedcross(alpha=0.8, partner=unlike)"),
    no_limit("each model of the server goes on by itself", "fedcross"),
    cite=("hu2024fedcross",),
    source="Hu et al., ICDE 2024",
    family="resets",
    advice=(
        Rule(
            "later",
            advice.label_skew_on_images,
            advice.LABELS + ": models of several clients are kept apart and crossed slowly",
        ),
    ),
    rank=240,
)
