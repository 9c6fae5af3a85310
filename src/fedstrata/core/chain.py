"""Chains of pieces: parse, compose, check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from fedstrata.common.call_syntax import bind, parse_calls
from fedstrata.common.errors import ConfigError, LayoutError, MethodError
from fedstrata.core.layout import Layout
from fedstrata.core.network import Net
from fedstrata.core.piece import Piece, Plans
from fedstrata.core.plan import Plan, Setup

OWNED = {
    "sample": "who takes part",
    "weigh": "how clients are weighted",
    "reduce": "how replies become one step",
    "step": "the local optimizer",
    "compress": "how an update is compressed",
    "personal_model": "the personal model that each client keeps",
}
"""Verbs with one owner in a chain, and what the owner decides."""


@dataclass(frozen=True)
class Method:
    """A chain of pieces; the empty chain is FedAvg.

    Client verbs run left to right, ``merge`` right to left; ``plan`` runs by what pieces plan: models, rounds, clients.
    """

    pieces: tuple[Piece, ...] = ()

    def __post_init__(self) -> None:
        check_chain(self.pieces)

    def __add__(self, other: Method | Piece) -> Method:
        return Method((*self.pieces, *(other.pieces if isinstance(other, Method) else (other,))))

    def __str__(self) -> str:
        return " + ".join(str(p) for p in self.pieces) or "fedavg"

    @cached_property
    def named(self) -> Mapping[str, Piece]:
        """Pieces by name; their states and payloads are kept under it."""
        return {p.name: p for p in self.pieces}

    @cached_property
    def planners(self) -> Mapping[str, Piece]:
        """Pieces by name in the order in which they plan."""
        order = get_args(Plans)
        return {p.name: p for p in sorted(self.pieces, key=lambda p: order.index(p.plans))}

    def owner(self, verb: str) -> Piece:
        """Return the piece that owns a verb, or plain FedAvg."""
        return next((p for p in self.pieces if p.overrides(verb)), PLAIN)

    def has(self, *verbs: str) -> bool:
        """Say whether some piece overrides one of these verbs."""
        return any(p.overrides(*verbs) for p in self.pieces)

    @cached_property
    def sees_replies(self) -> bool:
        """Whether the server step reads single replies; otherwise it is a function of weighted sums."""
        return self.has("screen", "observe", "reduce")

    def model(self, net: Net) -> Net:
        """Return the model under all pieces."""
        for piece in self.pieces:
            net = _with_one_head(piece, net)
        return net

    def check(self, setup: Setup) -> None:
        """Refuse a run that is invalid for some piece."""
        for piece in self.pieces:
            try:
                piece.check(setup)
            except LayoutError as error:
                hint = " Norm layers come with norm=batch or norm=group." if "kind:norm" in str(error) else ""
                raise LayoutError(f"{piece.name}: {error}{hint}") from error

    def check_plan(self, plan: Plan, layout: Layout) -> None:
        """Refuse a round's plan that is invalid for some piece."""
        for piece in self.pieces:
            piece.check_plan(plan, layout)

    def notes(self, setup: Setup) -> tuple[str, ...]:
        """Return what users must know of the pieces in this run."""
        return tuple(note for piece in self.pieces for note in piece.notes(setup))


PLAIN = Piece()


def chain(*pieces: Piece | Method) -> Method:
    """Compose pieces, left to right.

    Raises:
        MethodError: two pieces that own one verb, the same piece twice, or a chain that a piece refuses.
    """
    method = Method()
    for piece in pieces:
        method = method + piece
    return method


def check_chain(pieces: tuple[Piece, ...]) -> None:
    """Refuse a chain in which a piece occurs twice, a verb has two owners, or that a piece itself refuses."""
    names = [p.name for p in pieces]
    for name in names:
        if names.count(name) > 1:
            raise MethodError(
                f"{name} occurs {names.count(name)} times in the chain; write it once, with its settings."
            )
    for verb, meaning in OWNED.items():
        owners = [p.name for p in pieces if p.overrides(verb)]
        if len(owners) > 1:
            raise MethodError(
                f"{' and '.join(owners)} both decide {meaning} ({verb}); only one piece of a chain can. Leave one out."
            )
    for position, piece in enumerate(pieces):
        before = [p.name for p in pieces[:position] if p.overrides("refine")]
        if piece.overrides("personal_model") and before:
            raise MethodError(
                f"{piece.name} gives each client a personal model, so what {before[-1]} forms would be thrown away. "
                f"Write {piece.name} first, or leave one of them out."
            )
        piece.check_chain(pieces)


def _with_one_head(piece: Piece, net: Net) -> Net:
    """Apply ``piece.model`` and refuse a second piece that replaces the model's head."""
    changed = piece.model(net)
    if changed.head is net.head:
        return changed
    if net.head_owner:
        raise MethodError(
            f"{net.head_owner} and {piece.name} both replace the model's head; only one piece of a chain can. Leave"
            " one of them out."
        )
    return changed.owned_by(piece.name)


def parse(text: str, find: Callable[[str], type[Piece]]) -> Method:
    """Parse a method from call syntax, ``"fedprox(mu=0.1) + fedavgm"``.

    Args:
        text: names joined by ``+``; ``fedavg`` is the empty chain.
        find: returns the registered piece of a name, or raises.
    Raises:
        ConfigError: an unknown name or setting, with the nearest valid one.
        MethodError: see :func:`chain`.
    """
    pieces: list[Piece] = []
    for call in parse_calls(text):
        if call.name == "fedavg":
            if call.named or call.positional:
                raise ConfigError("fedavg has no settings; local training is set by local.* and weights by weighting.")
            continue
        pieces.append(bind(call, find(call.name), what="method"))
    return Method(tuple(pieces))
