"""FedPhoenix: every client starts from a copy of the model in which some kernels were drawn anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Layout
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import ClientContext, Piece, ServerContext, require, setting
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice, costs
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.resets import (
    Law,
    Matrix,
    choose,
    draw,
    largest,
    matrices,
    moments,
    seeded,
    seeded_by,
    whole,
)
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class FedPhoenix(Piece):
    """Give floor(theta n) of the n kernels of each active layer new values, drawn anew for every client and round.

    The values follow ``law``. A kernel is one output filter with all its input channels; biases, norms and (unless
    ``layers`` says so) linear layers stay. Mean and standard deviation are the layer's before the reset. Layer d of L
    (all convolutions, shallow to deep in the layout's order) is active in round t under ``schedule``

    * stair: t L < (d + 1) ``stop``, so shallow layers settle first; reverse: t L < (L - d) ``stop``;
    * linear: all, theta falling from round ``hold`` to 0 in round ``stop``; constant: all, in every round, at any
      ``stop``.

    ``layers`` fc or both resets rows of linear layers, too, in rounds before ``fc_stop`` (None is ``stop``). ``share``
    below 1 draws only that share of a kernel's entries anew, those of largest size; ``budget`` matched then takes theta
    / share kernels, as many numbers as whole kernels have. ``resets`` common gives all clients of a round the same
    reset. ``at_least_one`` takes a kernel where floor(theta n) is 0.

    The server averages the models that come back, as FedAvg does: an update is relative to what a client was *sent*,
    and the server adds how that differs from its model. With ``side`` server what is sent is the reset copy. With
    ``side`` client the server sends its model w and does not know the start; the client resets in ``receive`` and
    reports its end minus w, so that w + sum p (end - w) is the mean of the ends again. Were the update relative to the
    reset start, the mean would lose every reset. Pieces that pull towards the received model pull towards w then, not
    towards the start.

    Source: "Rising from Ashes: Generalized Federated Learning via Dynamic Parameter Reset", NeurIPS 2025; its released
        code and rebuttal. The schedule is its exact integer form. ``hold`` is INFERRED (the code's alternative gives no
        numbers). That linear layers are reset by rows and have a separate stop is INFERRED. The cut of the truncated
        normal, the width of Laplace's law and the orthogonal recipe are INFERRED. ``budget`` is INFERRED in its
        arithmetic. ``resets`` common is INFERRED as an ablation.
    """

    theta: float = setting(
        2 / 64, "a share of a layer's kernels, in [0, 1] (0 is FedAvg; published: 2/64)", least=0, most=1
    )
    stop: int = setting(1000, "the round from which nothing is reset, at least 0 (published: 1000 of 1200)", least=0)
    schedule: Literal["stair", "linear", "constant", "reverse"] = "stair"
    hold: int = 0
    law: Law = "adp_normal"
    scale: float = setting(1.0, "a factor on the standard deviation, above 0 (published: 1)", above=0)
    layers: Literal["conv", "fc", "both"] = "conv"
    fc_stop: int | None = setting(None, "the round from which no linear layer is reset, at least 0", least=0)
    share: float = setting(1.0, "a share of a kernel's entries, in (0, 1] (published: 1/3, 2/3 and 1)", above=0, most=1)
    budget: Literal["same", "matched"] = "same"
    side: Literal["server", "client"] = "server"
    resets: Literal["independent", "common"] = "independent"
    at_least_one: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        hold = f"a round in which theta begins to fall, in [0, stop={self.stop}]"
        require(0 <= self.hold <= self.stop, "fedphoenix.hold", self.hold, hold)
        matched = f"at most share={self.share} with budget=matched, which takes theta / share kernels"
        require(self.ratio <= 1, "fedphoenix.theta", self.theta, matched)
        if self.side == "client" and self.resets == "common":
            raise ConfigError(
                "fedphoenix(side=client, resets=common): the server would have to send clients the reset that they"
                " share, and then it knows every start, which is what side=client prevents. Use resets=independent, or"
                " side=server."
            )

    @property
    def ratio(self) -> float:
        """The share of kernels that are reset at full strength."""
        return self.theta / self.share if self.budget == "matched" else self.theta

    def ratio_at(self, depth: int, layers: int, t: int) -> float:
        """Return that share for one convolution in one round."""
        match self.schedule:
            case "stair":
                active = t * layers < (depth + 1) * self.stop
            case "reverse":
                active = t * layers < (layers - depth) * self.stop
            case "linear":
                return (
                    self.ratio
                    if t <= self.hold < self.stop
                    else self.ratio * max(0, self.stop - t) / max(1, self.stop - self.hold)
                )
            case "constant":
                active = True
        return self.ratio if active else 0.0

    def due(self, layout: Layout, t: int) -> Iterator[tuple[Matrix, int]]:
        """Yield the layers that take part in a round, with how many kernels of each."""
        convs = matrices(layout, "conv") if self.layers != "fc" else []
        rows = (
            matrices(layout, "linear")
            if self.layers != "conv" and t < (self.stop if self.fc_stop is None else self.fc_stop)
            else []
        )
        shares = [(m, self.ratio_at(d, len(convs), t)) for d, m in enumerate(convs)] + [(m, self.ratio) for m in rows]
        for m, share in shares:
            count = whole(share, m.rows, least=int(self.at_least_one))
            if count and self.entries(m) and m.rows * m.width > 1:  # a single number has no standard deviation
                yield m, count

    def entries(self, m: Matrix) -> int:
        """Count the numbers of a chosen kernel that are drawn anew."""
        return m.width if self.share == 1 else round(self.share * m.width)

    def reset(self, model: Model, layout: Layout, t: int, generator: torch.Generator) -> Model:
        """Return a copy with kernels drawn anew; the model itself where no layer takes part."""
        due = list(self.due(layout, t))
        if not due:
            return model
        flat = model.flat.detach().clone()
        for m, count in due:
            weights, (mean, std) = m.of(flat), moments(model, m)  # [n, width], a view
            chosen = choose(m.rows, count, generator)
            new = draw(self.law, (count, self.entries(m)), m.width, (mean, std), self.scale, generator, flat.dtype)
            if self.share < 1:
                kernels = weights.index_select(0, chosen)
                new = kernels.masked_scatter_(largest(kernels, self.share), new)
            weights.index_copy_(0, chosen, new)
        return model.new(flat)

    def send(self, model: Model, ctx: ServerContext) -> tuple[Params, State]:
        if self.side == "client" or not ctx.slot.training:  # outside a round there is no start to be reset
            return model, State()
        if self.resets == "common":
            generator = random_streams.torch_stream(ctx.setup.seed, "fedphoenix.common", ctx.round)
        else:
            generator = seeded(ctx.rng)
        return self.reset(model, ctx.layout, ctx.round, generator), State()

    def receive(self, model: Model, ctx: ClientContext) -> tuple[Model, State]:
        if self.side == "client":
            generator = seeded_by(ctx.noise("seed", (3,)).tolist())
            model = self.reset(model, ctx.layout, ctx.round, generator)
        return model, ctx.state

    def notes(self, setup: Setup) -> tuple[str, ...]:
        if not self.theta or any(True for _ in self.due(setup.layout, 0)):
            return ()
        return (f"fedphoenix{self._why_nothing(setup.layout)}",)

    def _why_nothing(self, layout: Layout) -> str:
        """Say why no layer takes part in round 0, and what would help."""
        convs = matrices(layout, "conv") if self.layers != "fc" else []
        chosen = convs + (matrices(layout, "linear") if self.layers != "conv" else [])
        if not chosen:
            return (
                f"(layers={self.layers}) resets nothing: the model has no such layer, so this is FedAvg. Try"
                " layers=both."
            )
        if not any(map(self.entries, chosen)):
            most = max(m.width for m in chosen)
            return (
                f"(share={self.share:g}) resets nothing: of a kernel's {most} numbers that is none. Set share to"
                f" 1/{most} or more."
            )
        if any(True for _ in replace(self, stop=self.stop or 1, fc_stop=self.fc_stop or None).due(layout, 0)):
            return (
                " resets nothing: it stops in round 0, so this is FedAvg. Set stop (for linear layers fc_stop) to a"
                " later round."
            )
        rows = max(m.rows for m in chosen)
        return (
            f" resets nothing: theta={self.theta:g} of {rows} kernels (the widest layer) is less than one, so this is"
            f" FedAvg. Set theta to 1/{rows} or more, or at_least_one=true."
        )

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        numbers = sum(m.rows * m.width for m, _ in self.due(setup.layout, 0))
        return {costs.LABEL: costs.fedphoenix(numbers, self.ratio * self.share, setup.cohort)}


ROW = Row(
    FedPhoenix,
    "some kernels of each layer are drawn anew for every client",
    (
        "fedphoenix(theta=0.5, stop=2, layers=both)",
        "fedphoenix(theta=0.5, layers=both, law=orthogonal, share=0.5, side=client)",
    ),
    Limit("fedphoenix(theta=0, layers=both)", "fedavg"),
    cite=("fedphoenix2025",),
    source="Rising from Ashes, NeurIPS 2025",
    family="resets",
    advice=(
        Rule(
            "later",
            lambda s: advice.label_skew_on_images(s) and s.rounds >= advice.LONG,
            advice.LABELS
            + " on images, and {s.rounds} rounds: kernels drawn anew for each client keep what many can use",
        ),
        Rule(
            "against",
            lambda s: s.images and s.rounds < advice.LONG,
            "its resets cost accuracy first and pay later, and {s.rounds} rounds are few",
        ),
    ),
    rank=210,
)
