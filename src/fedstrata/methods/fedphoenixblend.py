"""FedPhoenix for transformers: whole rows or columns are blended with new values instead of being overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch

from fedstrata.core.layout import Layout
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Piece, ServerContext, setting
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.resets import Matrix, choose, matrix, moments, normal, seeded, whole
from fedstrata.methods.parts.rows import Limit, Row

Lines: TypeAlias = Literal["rows", "columns", "none"]


class Part(NamedTuple):
    """One projection.

    Attributes:
        role: q, k and v are "qkv", o is "out", linear layers outside attention are "ffn".
        block: its transformer block, from 0.
    """

    matrix: Matrix
    role: Literal["qkv", "out", "ffn"]
    block: int


@dataclass(frozen=True)
class FedPhoenixBlend(Piece):
    """Blend floor(rho n) rows (columns) of each projection, W <- (1 - alpha) W + alpha S, anew for every client.

    S ~ N(mean, std) of that matrix. ``qkv``, ``out`` and ``ffn`` say whether rows or columns are taken, or none: a row
    is what enters one neuron. Fused q, k and v (three times as many rows as columns) are three matrices; the last
    matrix of an attention layer is its output projection; ffn are the linear layers of the body outside attention.
    alpha=1 resets whole lines, alpha=0 is FedAvg.

    ``blocks`` stair: block b of B takes part in round t while t B < (b + 1) ``stop``, so early blocks settle first.
    ``blocks`` shift: the focus moves from the first block to the last over ``stop`` rounds, f = (B - 1) t / stop, and
    block b has weight 1 - |b - f| / B: it takes part with that probability, and with that part of alpha.

    Source: proposed in the rebuttal of "Rising from Ashes", NeurIPS 2025, and not evaluated there. ``alpha`` 0.3 is
        INFERRED. ``rho`` is INFERRED (1/32). ``qkv`` is INFERRED. ``out`` is INFERRED. ``blocks`` is INFERRED in both
        its forms.
    """

    alpha: float = setting(0.3, "the strength of the blend, in [0, 1] (0 is FedAvg, 1 a reset)", least=0, most=1)
    rho: float = setting(1 / 32, "a share of rows or columns, in [0, 1]", least=0, most=1)
    stop: int = setting(1000, "the round from which nothing is blended, at least 0", least=0)
    blocks: Literal["stair", "shift"] = "stair"
    qkv: Lines = "rows"
    out: Lines = "columns"
    ffn: Lines = "rows"
    at_least_one: bool = False

    def weight(self, block: int, blocks: int, t: int) -> float:
        """Return how much a block takes part in a round, in [0, 1]."""
        if self.blocks == "stair":
            return float(t * blocks < (block + 1) * self.stop)
        return 1 - abs(block - (blocks - 1) * t / self.stop) / blocks if t < self.stop else 0.0

    def due(self, layout: Layout, t: int) -> Iterator[tuple[Part, Lines, int, float]]:
        """Yield projections that may take part in a round, with the lines, how many of them, and the weight."""
        projections = parts(layout)
        blocks = 1 + max((p.block for p in projections), default=0)
        for part in projections:
            lines: Lines = {"qkv": self.qkv, "out": self.out, "ffn": self.ffn}[part.role]
            weight = self.weight(part.block, blocks, t)
            length = part.matrix.rows if lines == "rows" else part.matrix.width
            count = whole(self.rho, length, least=int(self.at_least_one))
            if lines != "none" and count and weight and part.matrix.rows * part.matrix.width > 1:
                yield part, lines, count, weight

    def blend(self, model: Model, layout: Layout, t: int, generator: torch.Generator) -> Model:
        """Return a copy with lines blended; the model itself where none is."""
        due = list(self.due(layout, t)) if self.alpha else []
        if not due:
            return model
        flat = model.flat.detach().clone()
        blocks = 1 + max(part.block for part, *_ in due)
        coins = torch.rand(blocks, generator=generator)  # a block takes part as a whole
        for part, lines, count, weight in due:
            if coins[part.block] < weight:
                whole_matrix, (mean, std) = part.matrix.of(flat), moments(model, part.matrix)
                table = whole_matrix if lines == "rows" else whole_matrix.T  # [lines, width], a view
                chosen = choose(table.shape[0], count, generator)
                new = normal(count, table.shape[1], generator, flat.dtype).mul_(std).add_(mean)
                alpha = self.alpha * weight
                table.index_copy_(0, chosen, table.index_select(0, chosen).mul_(1 - alpha).add_(new, alpha=alpha))
        return model.new(flat)

    def send(self, model: Model, ctx: ServerContext) -> tuple[Params, State]:
        return self.blend(model, ctx.layout, ctx.round, seeded(ctx.rng)) if ctx.slot.training else model, State()

    def notes(self, setup: Setup) -> tuple[str, ...]:
        if not (self.alpha and self.rho) or any(True for _ in self.due(setup.layout, 0)):
            return ()
        widest = max((max(p.matrix.rows, p.matrix.width) for p in parts(setup.layout)), default=0)
        if not widest:
            note = "the model's body has no linear layer, so this is FedAvg. fedphoenix resets convolutions."
        else:
            note = (
                f"rho={self.rho:g} of at most {widest} rows or columns is less than one, so this is FedAvg. Set rho to"
                f" 1/{widest} or more, or at_least_one=true."
            )
        return (f"fedphoenixblend blends nothing: {note}",)


def parts(layout: Layout) -> list[Part]:
    """Return all projections of the body, shallow to deep."""
    projections: list[Part] = []
    blocks: dict[str, int] = {}
    for group in layout.groups.values():
        names = [
            n
            for n in group.names
            if len(layout.entries[n].shape) == 2 and layout.entries[n].kind in ("linear", "attention")
        ]
        if group.role == "head" or not names:
            continue
        block = blocks.setdefault(group.name.rpartition(".")[0] or group.name, len(blocks))
        if group.kind != "attention":
            projections += [Part(matrix(layout, n), "ffn", block) for n in names]
            continue
        *inner, last = names
        for name in inner:
            m = matrix(layout, name)
            projections += [Part(part, "qkv", block) for part in (m.cut(3) if m.rows == 3 * m.width else [m])]
        projections.append(Part(matrix(layout, last), "out", block))
    return projections


ROW = Row(
    FedPhoenixBlend,
    "rows or columns of projections are blended with new values for every client",
    ("fedphoenixblend(rho=0.5, stop=2, blocks=shift)",),
    Limit("fedphoenixblend(alpha=0, rho=0.5)", "fedavg"),
    cite=("fedphoenix2025",),
    source="Rising from Ashes, NeurIPS 2025, rebuttal",
    family="resets",
    advice=(
        Rule(
            "later",
            lambda s: s.tokens and advice.label_skew(s),
            advice.LABELS + ": resets for transformers, proposed but not evaluated",
        ),
    ),
    rank=220,
)
