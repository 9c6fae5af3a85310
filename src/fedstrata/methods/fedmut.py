"""FedMut: the server sends mutants of its model along its last step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedstrata.core.params import Model, Params, zeros
from fedstrata.core.piece import Contribution, Piece, ServerContext, setting, uniform_weights
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice, costs
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class FedMut(Piece):
    """Start cohort index j of the next round from w + ``alpha`` c_kj (w - w_before) in every tensor k.

    The mean over the cohort is unweighted. For each tensor the cohort gets floor(K / 2) pairs of the controls 1 and
    ``bias`` * max(0, 1 - t / ``fade``) - 1 in random order, t the round that ended, so the mutations cancel in the mean
    from round ``fade`` on. With an odd cohort the last index gets w itself. Round 0 sends w to all. Evaluated is w.
    Write it left of server optimizers, whose step it then mutates along.

    The released code mutates every tensor of the state; we mutate parameters and copy norm statistics, because a
    mutated variance can be negative.

    Source: Hu et al. 2024, "FedMut: Generalized Federated Learning via Stochastic Mutation"; alpha, bias and fade of
        its code.
    """

    alpha: float = setting(
        4.0, "the strength of mutations, at least 0 (0 is FedAvg with uniform weights; published: 4)", least=0
    )
    bias: float = setting(
        0.3, "how far the two mutations of a pair are from cancelling, in [0, 2] (published: 0.3)", least=0, most=2
    )
    fade: int = setting(50, "the round by which the bias is gone, at least 1 (published: 50)", least=1)

    def init_server(self, setup: Setup) -> State:
        return State(step=zeros(setup.model), controls=torch.zeros(len(setup.layout.spec.names), setup.cohort))

    def send(self, model: Model, ctx: ServerContext) -> tuple[Params, State]:
        step, controls, index = ctx.state.params("step"), ctx.state.tensor("controls"), ctx.slot.cohort_index
        if not 0 <= index < controls.shape[1] or not self.alpha or not controls[:, index].any():
            return model, State()
        each = torch.repeat_interleave(controls[:, index], torch.tensor(step.spec.sizes))  # [P]
        return model.new(torch.addcmul(model.flat, each, step.flat, value=self.alpha)), State()

    def weigh(self, contributions: Sequence[Contribution], ctx: ServerContext) -> Tensor:
        return uniform_weights(contributions)

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, State]:
        old = ctx.state.params("step")
        controls = self.controls(len(old.spec.names), ctx.setup.cohort, ctx.round, ctx.rng)
        return step, State(step=zeros(old) | step, controls=torch.from_numpy(controls))

    def controls(self, tensors: int, cohort: int, t: int, rng: Generator) -> np.ndarray:
        """Return [tensors, cohort] float32: the controls of the round after ``t``."""
        back = self.bias * (1 - min(t / self.fade, 1)) - 1
        pairs = np.tile(np.array([1, back], dtype=np.float32), (tensors, cohort // 2))
        controls = np.zeros((tensors, cohort), dtype=np.float32)
        controls[:, : pairs.shape[1]] = rng.permuted(pairs, axis=1)
        return controls

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        return {costs.LABEL: costs.fedmut(setup.layout.spec.total, setup.cohort)}


ROW = Row(
    FedMut,
    "each cohort index starts from a mutant along the last step",
    ("fedmut(alpha=0.5)",),
    Limit("fedmut(alpha=0)", "fedavg", uniform=True),
    cite=("hu2024fedmut",),
    source="Hu et al., AAAI 2024",
    family="resets",
    advice=(
        Rule(
            "later",
            advice.label_skew_on_images,
            advice.LABELS + ": clients start from mutations of the model, which then ends in a flat minimum",
        ),
    ),
    rank=230,
)
