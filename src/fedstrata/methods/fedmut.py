"""FedMut: the server sends mutants of its model along its last step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.params import Params, zeros
from fedstrata.core.piece import Piece, Reply, ServerContext, require, uniform_weights
from fedstrata.core.plan import CohortSlot, Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import costs

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True)
class FedMut(Piece):
    """Place j of the next cohort starts from w + ``alpha`` c_kj (w - w_before) in every tensor k; the mean over places
    is unweighted.

    For each tensor the places get floor(K / 2) pairs of the controls 1 and ``bias`` * max(0, 1 - t / ``fade``) - 1 in
    random order, t the round that ended, so the mutations cancel in the mean from round ``fade`` on. With an odd cohort
    the last place gets w itself. Round 0 sends w to all. Evaluated is w. Write it left of server optimisers, whose step
    it then mutates along.

    The released code mutates every tensor of the state; we mutate parameters and copy norm statistics, because a
    mutated variance can be negative.

    Source: Hu et al. 2024, "FedMut: Generalized Federated Learning via Stochastic Mutation"; alpha, bias and fade of
        its code.
    """

    source: ClassVar[str] = "Hu et al., AAAI 2024"
    alpha: float = 4.0
    bias: float = 0.3
    fade: int = 50

    def __post_init__(self) -> None:
        require(
            self.alpha >= 0,
            "fedmut.alpha",
            self.alpha,
            "the strength of mutations, at least 0 (0 is FedAvg with uniform weights; published: 4)",
        )
        require(
            0 <= self.bias <= 2,
            "fedmut.bias",
            self.bias,
            "how far the two mutations of a pair are from cancelling, in [0, 2] (published: 0.3)",
        )
        require(
            self.fade >= 1, "fedmut.fade", self.fade, "the round by which the bias is gone, at least 1 (published: 50)"
        )

    def init(self, setup: Setup) -> State:
        return {"step": zeros(setup.params), "controls": torch.zeros(len(setup.layout.spec.names), setup.cohort)}

    def send(self, params: Params, slot: State, seat: CohortSlot, rng: Generator, setup: Setup) -> tuple[Params, State]:
        step, controls = slot["step"], slot["controls"]
        assert isinstance(step, Params)
        assert isinstance(controls, Tensor)
        if not 0 <= seat.place < controls.shape[1] or not self.alpha or not controls[:, seat.place].any():
            return params, {}
        each = torch.repeat_interleave(controls[:, seat.place], torch.tensor(step.spec.sizes))  # [P]
        return params.new(torch.addcmul(params.flat, each, step.flat, value=self.alpha)), {}

    def weigh(self, replies: Sequence[Reply], slot: State, v: ServerContext) -> Tensor:
        return uniform_weights(replies)

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        old = slot["step"]
        assert isinstance(old, Params)
        controls = self.controls(len(old.spec.names), v.setup.cohort, v.round, v.rng)
        return step, {"step": zeros(old) | step, "controls": torch.from_numpy(controls)}

    def controls(self, tensors: int, cohort: int, t: int, rng: Generator) -> np.ndarray:
        """[tensors, cohort] float32: the controls of the round after ``t``."""
        back = self.bias * (1 - min(t / self.fade, 1)) - 1
        pairs = np.tile(np.array([1, back], dtype=np.float32), (tensors, cohort // 2))
        found = np.zeros((tensors, cohort), dtype=np.float32)
        found[:, : pairs.shape[1]] = rng.permuted(pairs, axis=1)
        return found

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        return {costs.LABEL: costs.fedmut(setup.layout.spec.total, setup.cohort)}
