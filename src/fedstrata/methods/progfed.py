"""ProgFed: the network grows in stages; a stage trains, sends and averages its front under a separate head."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from fedstrata.common import random_streams
from fedstrata.common.errors import MethodError
from fedstrata.core.layout import Layout, Names
from fedstrata.core.network import Net
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece, ServerContext, setting
from fedstrata.core.plan import Plan, Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row

LEFT = "progfed.left"  # the integer buffer: stages that are still to come


@dataclass(frozen=True)
class ProgFed(Piece):
    """Train a front of the network that grows in stages, each under a separate head.

    Each stage but the last takes ``each`` rounds, by default rounds / (2 S) of S stages; the last takes what is left.
    A stage reaches one exit of the model further. What lies behind is neither run nor sent; the head of a stage is
    dropped when the next one begins. A stage after the first begins with ``warmup`` further rounds in which only its
    newest block and its head train. ``stages`` takes the last so many exits. Features have room for those of every
    stage; the others' are 0. A round that is lost delays the next stage until a round succeeds. The server's model is
    in the next stage from the end of a stage's last round on, so that a score taken there is of an untrained head;
    after the run's last round it stays in the stage that was trained.

    INFERRED: the start of the heads, PyTorch's default from a stream that follows from the start of the model's head.

    Source: Wang et al. 2022, "ProgFed: Effective, Communication, and Computation Efficient Federated Learning by
        Progressive Training", sec. 3.
    """

    each: int | None = setting(None, "the rounds of a stage before the last, at least 1", least=1)
    warmup: int = setting(0, "rounds that train the newest block alone, at least 0 (published: 0, 5 or 25)", least=0)
    stages: int | None = setting(None, "a number of stages, at least 1", least=1)

    # ---- the network

    def exits(self, net: Net) -> Mapping[str, int]:
        """Return the exits that are stages, with their features, shallow to deep."""
        return dict(list(net.exits.items())[-(self.stages or len(net.exits)) :])

    def model(self, net: Net) -> Net:
        widths = list(self.exits(net).values())
        if len(widths) < 2:
            return net
        last, skipped, starts = len(widths) - 1, len(net.exits) - len(widths), [0, *accumulate(widths)]
        left = torch.tensor([float(last)])
        wide = _with_heads(net, widths[:-1]).with_parameter(LEFT, left, kind="integer", role="body")
        reach = net.reach
        assert reach is not None, "a body with exits ends at them"

        def features(p: Params, x: Tensor) -> Tensor:
            s = last - p.integer(LEFT)
            z = net.features(p, x) if s == last else reach(p, x, skipped + s + 1)
            return functional.pad(z, (starts[s], starts[-1] - starts[s + 1]))

        def head(p: Params, z: Tensor) -> Tensor:
            s = last - p.integer(LEFT)
            mine = z[:, starts[s] : starts[s + 1]]
            if s == last:
                return net.head(p, mine)
            return functional.linear(mine, p[f"progfed.{s}.weight"], p[f"progfed.{s}.bias"])

        return replace(wide, features=features, head=head)

    def reached(self, layout: Layout, net: Net, stage: int) -> Names:
        """Return all tensors up to this stage, without heads: layer groups up to that of the exit, and statistics."""
        exits, groups = list(self.exits(net)), layout.groups
        body = [e for e in layout.entries.values() if e.role == "body" and not e.name.startswith("progfed.")]
        if stage == len(exits) - 1:
            return frozenset(e.name for e in body)
        depth = max(groups[e.group].depth for e in body if e.name.startswith(f"{exits[stage]}.") and e.group in groups)
        return frozenset(e.name for e in body if e.group not in groups or groups[e.group].depth <= depth)

    def heads(self, layout: Layout, stage: int, stages: int) -> Names:
        """Return the head of a stage."""
        if stage < stages - 1:
            return layout.group(f"progfed.{stage}")
        return frozenset(
            e.name for e in layout.entries.values() if e.role == "head" and not e.name.startswith("progfed.")
        )

    # ---- the calendar

    def turn(self, t: int, stages: int, rounds: int) -> tuple[int, bool]:
        """Return (stage of round t, whether it only warms up), counted from 0."""
        each = self.each or max(1, rounds // (2 * stages))
        if t < each or stages == 1:
            return 0, False
        stage = min(1 + (t - each) // (each + self.warmup), stages - 1)
        return stage, t - each - (stage - 1) * (each + self.warmup) < self.warmup

    # ---- the piece

    def check_chain(self, pieces: Sequence[Piece]) -> None:
        if pieces[0].name != self.name:
            raise MethodError(
                f"progfed sets the stage of the network last on the server, after {pieces[0].name}. Write progfed"
                " first."
            )
        for piece in pieces:
            if piece.overrides("send", "personal_model"):
                raise MethodError(
                    f"progfed changes the network from stage to stage, and {piece.name} sends or keeps what belongs to"
                    " another one. Leave one of them out."
                )

    def check(self, setup: Setup) -> None:
        exits = len(setup.net.exits)
        if self.stages != 1 and exits < 1:
            raise MethodError(
                "progfed needs a model that may end early, and this one has no exits; resnet8, resnet18 and mlp have"
                " some."
            )
        if self.stages is not None and self.stages > max(1, exits):
            raise MethodError(
                f"progfed.stages is {self.stages}, but the model has {exits} exits; take so many or fewer."
            )

    def notes(self, setup: Setup) -> tuple[str, ...]:
        stages = len(self.exits(setup.net))
        if stages < 2:
            return ("progfed has one stage here, and then it is FedAvg. A model with more exits would grow.",)
        stage, _ = self.turn(setup.rounds - 1, stages, setup.rounds)
        if stage == stages - 1:
            return ()
        note = f"progfed ends in stage {stage + 1} of {stages}, so that the rest of the network is never trained."
        return (f"{note} Take more rounds, or a smaller each.",)

    def init_server(self, setup: Setup) -> State:
        stages = len(self.exits(setup.net))
        return State(left=torch.tensor(stages - 1)) if stages > 1 else State()

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        if not ctx.state:
            return plan
        layout, net, stages = ctx.layout, ctx.setup.net, len(self.exits(ctx.setup.net))
        stage = stages - 1 - int(ctx.state.tensor("left"))
        front, head = self.reached(layout, net, stage), self.heads(layout, stage, stages)
        plan = plan.without(layout.all - front - head - layout.integers)
        if self.turn(ctx.round, stages, ctx.setup.rounds) != (stage, True):
            return plan
        return plan.only((front - self.reached(layout, net, stage - 1)) | head, layout)

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, State]:
        if not ctx.state:
            return step, ctx.state
        stages, rounds = len(self.exits(ctx.setup.net)), ctx.setup.rounds
        following = min(ctx.round + 1, rounds - 1)  # after the run's last round the network stays what was trained
        left = stages - 1 - self.turn(following, stages, rounds)[0]
        change = Params.of({LEFT: torch.tensor([float(left)]) - ctx.model[LEFT]})
        return step | change, State(left=torch.tensor(left))


def _with_heads(net: Net, widths: list[int]) -> Net:
    """Add a linear head for each of these stages, in the data type of the model's head."""
    last = next(net.initial[e.name] for e in net.entries if e.role == "head" and len(e.shape) == 2)  # [classes, d]
    draw = random_streams.torch_stream(0, "progfed", zlib.crc32(last.detach().contiguous().numpy().tobytes()))
    for stage, width in enumerate(widths):
        for name, shape in (("weight", (len(last), width)), ("bias", (len(last),))):
            value = ((2 * torch.rand(shape, generator=draw) - 1) / width**0.5).to(last.dtype)
            net = net.with_parameter(
                f"progfed.{stage}.{name}", value, kind="linear", role="head", group=f"progfed.{stage}"
            )
    return net


ROW = Row(
    ProgFed,
    "the network grows stage by stage, each with a separate head",
    ("progfed(each=1)", "progfed(each=1, warmup=1)", "progfed(each=1) + fedprox(mu=0.1) + fedavgm(beta=0.9)"),
    Limit("progfed(stages=1)", "fedavg"),
    cite=("wang2022progfed",),
    source="Wang et al., ICML 2022",
    family="partial",
    advice=(
        Rule(
            "later",
            lambda s: s.exits > 1 and s.rounds >= advice.LONG,
            "{s.model} may end after each of {s.exits} stages, and {s.rounds} rounds: early ones train and send the"
            " front of it",
        ),
        Rule(
            "against",
            lambda s: s.exits < 2,
            "{s.model} has {s.exits} stages to end after: it is FedAvg with 1, and needs 2",
            "arithmetic",
        ),
    ),
    rank=290,
)
