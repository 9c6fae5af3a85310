"""Chains of pieces: parse, chain, check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import get_args

from fedstrata.common.call_syntax import bind, parse_calls
from fedstrata.common.errors import ConfigError, LayoutError, MethodError, nearest
from fedstrata.core.network import Net
from fedstrata.core.piece import Piece, Plans
from fedstrata.core.plan import Setup

SINGLE = {
    "sample": "who takes part",
    "weigh": "how clients are weighted",
    "reduce": "how replies become one step",
    "step": "the local optimiser",
}


@dataclass(frozen=True)
class Method:
    """A chain of pieces; the empty chain is FedAvg.

    Client verbs run left to right, ``merge`` right to left.
    """

    pieces: tuple[Piece, ...] = ()

    def __post_init__(self) -> None:
        _check_chain(self.pieces)

    def __add__(self, other: Method | Piece) -> Method:
        return Method((*self.pieces, *(other.pieces if isinstance(other, Method) else (other,))))

    def __str__(self) -> str:
        return " + ".join(str(p) for p in self.pieces) or "fedavg"

    @cached_property
    def named(self) -> Mapping[str, Piece]:
        """Piece by its name; slots, rows, extras and mail are kept under it."""
        return {name_of(p): p for p in self.pieces}

    def owner(self, verb: str) -> Piece:
        """The piece that owns a verb, or plain FedAvg."""
        return next((p for p in self.pieces if p.overrides(verb)), PLAIN)

    def has(self, verb: str) -> bool:
        """Whether some piece overrides a verb."""
        return any(p.overrides(verb) for p in self.pieces)

    @property
    def needs(self) -> str:
        """What the server step needs: "individuals" if some piece must see single replies, otherwise "sum"."""
        return "individuals" if any(p.needs == "individuals" for p in self.pieces) else "sum"

    def model(self, net: Net) -> Net:
        """The model under all pieces."""
        for piece in self.pieces:
            net = piece.model(net)
        return net

    def check(self, setup: Setup) -> None:
        """Refuse a run that some piece cannot mean."""
        for piece in self.pieces:
            try:
                piece.check(setup)
            except LayoutError as error:
                hint = " Norm layers come with norm=batch or norm=group." if "kind:norm" in str(error) else ""
                raise LayoutError(f"{name_of(piece)}: {error}{hint}") from error

    def notes(self, setup: Setup) -> tuple[str, ...]:
        """What a user must be told of the pieces in this run."""
        return tuple(note for piece in self.pieces for note in piece.notes(setup))


PLAIN = Piece()


def name_of(piece: Piece) -> str:
    """The name under which a piece is registered: its class, in lower case."""
    return type(piece).__name__.lower()


def chain(*pieces: Piece | Method) -> Method:
    """Compose pieces, left to right.

    Raises:
        MethodError: two pieces that own one verb, the same piece twice, or a wire piece that is not last.
    """
    method = Method()
    for piece in pieces:
        method = method + piece
    return method


def _check_chain(pieces: tuple[Piece, ...]) -> None:
    names = [name_of(p) for p in pieces]
    for name in names:
        if names.count(name) > 1:
            raise MethodError(
                f"{name} stands {names.count(name)} times in the chain; write it once, with the settings you mean."
            )
    for verb, meaning in SINGLE.items():
        owners = [name_of(p) for p in pieces if p.overrides(verb)]
        if len(owners) > 1:
            raise MethodError(
                f"{' and '.join(owners)} both decide {meaning} ({verb}); only one piece of a chain can. Leave one of"
                " them out."
            )
    heads = [name_of(p) for p in pieces if p.head]
    if len(heads) > 1:
        raise MethodError(
            f"{' and '.join(heads)} both replace the model's head; only one piece of a chain can. Leave one of them"
            " out."
        )
    personal = [p for p in pieces if p.overrides("personalise")]
    for first, later in pairwise(personal):
        if later.own_model:
            raise MethodError(
                f"{name_of(later)} gives each client a model that it keeps itself, so what {name_of(first)} forms would"
                f" be thrown away. Write {name_of(later)} first, or leave one of them out."
            )
    _check_starts(pieces)
    _check_growth(pieces)
    _check_plans(pieces)
    for piece, follower in pairwise(pieces):
        if piece.wire and (follower.wire or follower.overrides("upload")):
            raise MethodError(
                f"{name_of(piece)} must come last: {name_of(follower)} would work on what is packed already. Write it"
                " at the end, or leave one out."
            )


def _check_starts(pieces: tuple[Piece, ...]) -> None:
    """A client that puts its start together of what it was sent earlier must be sent the same model as everybody, in
    every round.
    """
    starts, senders = [p for p in pieces if p.one_start], [p for p in pieces if p.overrides("send")]
    if starts and senders:
        raise MethodError(
            f"{name_of(starts[0])} has clients keep what they were sent, and {name_of(senders[0])} sends what is made"
            " for one round and client. Leave one of them out."
        )


def _check_growth(pieces: tuple[Piece, ...]) -> None:
    """A network that changes with the round is the server's: what is set comes last on the server, and no other model
    is trained or kept.
    """
    for place, piece in enumerate(pieces):
        if piece.grows and place:
            raise MethodError(
                f"{name_of(piece)} sets how far the network goes once {name_of(pieces[0])} has had its say. Write"
                f" {name_of(piece)} first."
            )
        others = [name_of(p) for p in pieces if p.overrides("send") or p.own_model]
        if piece.grows and others:
            raise MethodError(
                f"{name_of(piece)} changes the network from stage to stage, and {others[0]} sends or keeps what belongs"
                " to another one. Leave one of them out."
            )


def _check_plans(pieces: tuple[Piece, ...]) -> None:
    """A plan made for what other pieces leave is not changed behind its back."""
    order = get_args(Plans)
    for first, later in combinations([p for p in pieces if p.overrides("plan")], 2):
        if order.index(first.plans) > order.index(later.plans):
            raise MethodError(
                f"{name_of(first)} plans for what the other pieces train and send, and {name_of(later)} would change"
                f" that afterwards. Write {name_of(first)} behind {name_of(later)}."
            )


def parse(text: str, table: Mapping[str, type[Piece]]) -> Method:
    """A method from call syntax, ``"fedprox(mu=0.1) + fedavgm"``.

    Args:
        text: names joined by ``+``; ``fedavg`` is the empty chain.
        table: registered pieces by name.
    Raises:
        ConfigError: an unknown name or setting, with the nearest valid one.
        MethodError: see :func:`chain`.
    """
    pieces: list[Piece] = []
    for call in parse_calls(text):
        if call.name == "fedavg":
            if call.named or call.positional:
                raise ConfigError(
                    "fedavg has no settings of its own; local training is set by local.* and weights by weighting."
                )
            continue
        if call.name not in table:
            raise ConfigError(
                f"no method is called {call.name!r}.{nearest(call.name, ['fedavg', *table])} `fedstrata list methods`"
                " shows all."
            )
        pieces.append(bind(call, table[call.name], what="method"))
    return Method(tuple(pieces))
