"""ProgFed: the network grows in stages; a stage trains, sends and averages the front of it under a head of its own."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedstrata.common import random_streams
from fedstrata.common.errors import MethodError
from fedstrata.core.layout import Layout, Names
from fedstrata.core.network import Net
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece, ServerContext, require
from fedstrata.core.plan import Plan, QueryResult, Setup
from fedstrata.core.state import State

LEFT = "progfed.left"  # the setting: stages that are still to come


@dataclass(frozen=True)
class ProgFed(Piece):
    """Each stage but the last takes ``each`` rounds, by default rounds / (2 S) of S stages; the last takes what is
    left.

    A stage reaches one exit of the model further. What lies behind is neither run nor sent; the head of a stage is
    dropped when the next one begins. A stage after the first begins with ``warmup`` further rounds in which only its
    newest block and its head train. ``stages`` takes the last so many exits. Features have room for those of every
    stage; the others' are 0. A round that is lost delays the next stage until a round succeeds. The server's model is
    in the next stage from the end of a stage's last round on, so that a score taken there is of a head that nobody has
    trained; after the run's last round it stays in the stage that was trained.

    INFERRED: the start of the heads, PyTorch's default from a stream that follows from the start of the model's own
        head.

    Source: Wang et al. 2022, "ProgFed: Effective, Communication, and Computation Efficient Federated Learning by
        Progressive Training", sec. 3.
    """

    source: ClassVar[str] = "Wang et al., ICML 2022"
    head: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    each: int | None = None
    warmup: int = 0
    stages: int | None = None

    def __post_init__(self) -> None:
        require(
            self.each is None or self.each >= 1,
            "progfed.each",
            self.each,
            "the rounds of a stage before the last, at least 1",
        )
        require(
            self.warmup >= 0,
            "progfed.warmup",
            self.warmup,
            "rounds that train the newest block alone, at least 0 (published: 0, 5 or 25)",
        )
        require(
            self.stages is None or self.stages >= 1, "progfed.stages", self.stages, "a number of stages, at least 1"
        )

    # ---- the network
    # ------------------------------------------------------------------------------------------------------------------

    def exits(self, net: Net) -> Mapping[str, int]:
        """The exits that are stages, with their features, shallow to deep."""
        return dict(list(net.exits.items())[-(self.stages or len(net.exits)) :])

    def model(self, net: Net) -> Net:
        widths = list(self.exits(net).values())
        if len(widths) < 2:
            return net
        last, skipped, starts = len(widths) - 1, len(net.exits) - len(widths), [0, *accumulate(widths)]
        wide = _with_heads(net, widths[:-1]).with_parameter(
            LEFT, torch.tensor([float(last)]), kind="setting", role="body"
        )
        assert net.reach is not None, "a body with exits ends at them"
        reach = net.reach

        def features(p: Params, x: Tensor) -> Tensor:
            s = last - p.setting(LEFT)
            z = net.features(p, x) if s == last else reach(p, x, skipped + s + 1)
            return functional.pad(z, (starts[s], starts[-1] - starts[s + 1]))

        def head(p: Params, z: Tensor) -> Tensor:
            s = last - p.setting(LEFT)
            own = z[:, starts[s] : starts[s + 1]]
            return (
                net.head(p, own)
                if s == last
                else functional.linear(own, p[f"progfed.{s}.weight"], p[f"progfed.{s}.bias"])
            )

        return replace(wide, features=features, head=head)

    def reached(self, layout: Layout, net: Net, stage: int) -> Names:
        """All tensors up to this stage, without heads: layer groups up to that of the exit, and their statistics."""
        exits, groups = list(self.exits(net)), layout.groups
        body = [e for e in layout.entries.values() if e.role == "body" and not e.name.startswith("progfed.")]
        if stage == len(exits) - 1:
            return frozenset(e.name for e in body)
        depth = max(groups[e.group].depth for e in body if e.name.startswith(f"{exits[stage]}.") and e.group in groups)
        return frozenset(e.name for e in body if e.group not in groups or groups[e.group].depth <= depth)

    def heads(self, layout: Layout, stage: int, stages: int) -> Names:
        """The head of a stage."""
        if stage < stages - 1:
            return layout.group(f"progfed.{stage}")
        return frozenset(
            e.name for e in layout.entries.values() if e.role == "head" and not e.name.startswith("progfed.")
        )

    # ---- the calendar
    # -----------------------------------------------------------------------------------------------------------------

    def turn(self, t: int, stages: int, rounds: int) -> tuple[int, bool]:
        """(stage of round t, whether it only warms up), both counted from 0."""
        each = self.each or max(1, rounds // (2 * stages))
        if t < each or stages == 1:
            return 0, False
        stage = min(1 + (t - each) // (each + self.warmup), stages - 1)
        return stage, t - each - (stage - 1) * (each + self.warmup) < self.warmup

    # ---- the piece
    # --------------------------------------------------------------------------------------------------------------------

    def check(self, setup: Setup) -> None:
        found = len(setup.net.exits)
        if self.stages != 1 and found < 1:
            raise MethodError(
                "progfed needs a model that may end early, and this one has no exits; resnet8, resnet18 and mlp have"
                " some."
            )
        if self.stages is not None and self.stages > max(1, found):
            raise MethodError(
                f"progfed.stages is {self.stages}, but the model has {found} exits; take so many or fewer."
            )

    def notes(self, setup: Setup) -> tuple[str, ...]:
        stages = len(self.exits(setup.net))
        if stages < 2:
            return ("progfed has one stage here, and then it is FedAvg. A model with more exits would grow.",)
        stage, _ = self.turn(setup.rounds - 1, stages, setup.rounds)
        if stage == stages - 1:
            return ()
        return (
            (
                f"progfed ends in stage {stage + 1} of {stages}, so that the rest of the network is never trained. Take"
                " more rounds, or a smaller each."
            ),
        )

    def init(self, setup: Setup) -> State:
        stages = len(self.exits(setup.net))
        return {"left": torch.tensor(stages - 1)} if stages > 1 else {}

    # the field's word
    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        if not slot:
            return plan
        layout, stages = setup.layout, len(self.exits(setup.net))
        stage = stages - 1 - _number(slot)
        front, head = self.reached(layout, setup.net, stage), self.heads(layout, stage, stages)
        plan = plan.without(layout.all - front - head - layout.settings)
        if self.turn(round, stages, setup.rounds) != (stage, True):
            return plan
        return plan.only((front - self.reached(layout, setup.net, stage - 1)) | head, layout)

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        if not slot:
            return step, slot
        stages = len(self.exits(v.setup.net))
        following = min(
            v.round + 1, v.setup.rounds - 1
        )  # after the run's last round the network stays what was trained
        left = stages - 1 - self.turn(following, stages, v.setup.rounds)[0]
        return step | Params.of({LEFT: torch.tensor([float(left)]) - v.params[LEFT]}), {"left": torch.tensor(left)}


def _with_heads(net: Net, widths: list[int]) -> Net:
    """A linear head for each of these stages, in the numbers of the model's own."""
    own = next(net.initial[e.name] for e in net.entries if e.role == "head" and len(e.shape) == 2)  # [classes, d]
    draw = random_streams.torch_stream(0, "progfed", zlib.crc32(own.detach().contiguous().numpy().tobytes()))
    for stage, width in enumerate(widths):
        for name, shape in (("weight", (len(own), width)), ("bias", (len(own),))):
            value = ((2 * torch.rand(shape, generator=draw) - 1) / width**0.5).to(own.dtype)
            net = net.with_parameter(
                f"progfed.{stage}.{name}", value, kind="linear", role="head", group=f"progfed.{stage}"
            )
    return net


def _number(slot: State) -> int:
    left = slot["left"]
    assert isinstance(left, Tensor)
    return int(left)
