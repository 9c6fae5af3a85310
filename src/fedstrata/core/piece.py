"""The vocabulary: what a federated method may say, as a difference from FedAvg.

A :class:`Piece` is a frozen value with hyper-parameters and nothing else. It overrides a few verbs; every default is
the identity or plain FedAvg. State goes in and comes out: a piece's *slot* lives on the server, its *row* with one
client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.core.layout import Layout, Names
from fedstrata.core.network import Batch, Net
from fedstrata.core.params import Params, mean_over_senders
from fedstrata.core.plan import ClientQuery, CohortSlot, Phase, Plan, QueryResult, Setup
from fedstrata.core.state import State

if TYPE_CHECKING:
    from numpy.random import Generator

Loss: TypeAlias = Callable[[Params, Batch], Tensor]
Plans: TypeAlias = Literal["model", "round", "client"]  # what a piece plans, in the order in which pieces stand
Gradient: TypeAlias = Callable[[Params, Batch], Params]


@dataclass
class ClientContext:
    """What client code may see. ``own`` and ``extras`` are those of the piece that is called.

    Attributes:
        net, layout: the model's functions and names.
        setup: the run.
        anchor: where this client starts: what was sent, with its own stored tensors in place; a constant.
        extras: counted extras that the server sent for this piece.
        own: this piece's row.
        round: zero-based.
        samples: training samples; counts: [classes] float, how many of each label.
        steps: local steps over all phases.
        lr: local learning rate of this round.
        phase: the current one; plan: of this client.
        fresh: the client has not taken part yet (nothing of it is stored).
        loss: the plain one, mean over a batch; gradient: at any parameters, of the chain's loss while training and of
            the plain one elsewhere.
        carry: what ``step`` carried, after training; end: the parameters then, with their statistics; train_loss: the
            mean.
    """

    net: Net
    layout: Layout
    setup: Setup
    anchor: Params
    extras: State
    own: State
    round: int
    samples: int
    counts: Tensor
    steps: int
    lr: float
    phase: Phase
    plan: Plan
    loss: Loss
    gradient: Gradient
    tools: Tools
    fresh: bool = True
    piece: str = ""
    carry: Any = None
    end: Params | None = None
    train_loss: float = float("nan")

    def noise(self, name: str, shape: Sequence[int], kind: Literal["uniform", "normal"] = "uniform") -> Tensor:
        """Numbers of this client, round, piece and name, and inside a local step of that step: U[0, 1) or N(0, 1).

        The same call gives the same numbers. Uniform numbers with a shorter first axis are the first of those with a
        longer one.
        """
        return self.tools.noise(f"{self.piece}.{name}", shape, kind)

    def fit(self, start: Params, purpose: str, **options: Any) -> Params:
        """Private training by the engine's own loop; see :class:`Tools`."""
        return self.tools.fit(start, f"{self.piece}.{purpose}", **options)

    def scan(self, function: Callable[[Any, Batch], Any], carry: Any, purpose: str, **options: Any) -> Any:
        """Fold a function over batches of this client's own samples; see :class:`Tools`."""
        return self.tools.scan(function, carry, f"{self.piece}.{purpose}", **options)


class Tools(Protocol):
    """What the engine does for a piece on a client."""

    def noise(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        """Derived random numbers."""

    def fit(
        self,
        start: Params,
        purpose: str,
        *,
        loss: Loss | None = None,
        gradient: Callable[[Gradient], Gradient] | None = None,
        train: Names | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
    ) -> Params:
        """Train from ``start`` on this client's samples with the run's local optimiser.

        Args:
            start: where to begin; it is not changed.
            purpose: names the data order, so that it differs from that of the main training.
            loss: instead of the plain one.
            gradient: middleware round the gradient.
            train: parameters that move; None is all.
            epochs: the length in passes; None is the run's.
            steps: the length in batches, instead of epochs.
            lr: absolute; None is this round's.
        """

    def scan(
        self, function: Callable[[Any, Batch], Any], carry: Any, purpose: str, *, epochs: int = 1, share: float = 1.0
    ) -> Any:
        """``carry = function(carry, batch)`` over the client's batches; returns the last carry.

        ``share`` < 1 reads that part of the samples.
        """


@dataclass(frozen=True)
class Reply:
    """What one client sent back.

    Attributes:
        place: in the cohort; client: its id.
        delta: difference over the plan's ``up`` parameters, from what the client started with.
        statistics: norm statistics over the plan's ``up``, as values.
        mail: further counted tensors, by piece.
        samples: training samples; steps: local steps taken.
        loss: mean training loss.
        passes: samples that went through local steps, by purpose, and through layers in front of them that ran once a
            sample; the ledger turns them into FLOPs.
        row: the client's new row, all pieces together; it stays with the client.
        front: how often values in front of the trained layers were kept over the local steps, or why not, by phase.
    """

    place: int
    client: int
    delta: Params
    statistics: Params
    mail: Mapping[str, State]
    samples: int
    steps: int
    loss: float
    passes: Mapping[str, int] = field(default_factory=dict)
    row: Mapping[str, Tensor] = field(default_factory=dict)
    front: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerContext:
    """What server code may see in a round.

    Attributes:
        setup, params, plan, round: the run, the model before the round, the plan, the zero-based index.
        replies: the accepted ones, in cohort order.
        sent: what each of them was sent.
        answers: to this piece's question.
        lr: local learning rate of this round.
        rng: a derived generator of this piece and round.
    """

    setup: Setup
    params: Params
    plan: Plan
    round: int
    lr: float
    replies: Sequence[Reply]
    sent: Sequence[Params]
    answers: QueryResult | None
    rng: Generator

    @property
    def layout(self) -> Layout:
        """Names, groups, roles."""
        return self.setup.layout


@dataclass(frozen=True)
class Piece:
    """A difference from FedAvg. Subclasses are frozen dataclasses of hyper-parameters that override a few verbs.

    Class attributes:
        needs: "sum" if the server step is a function of weighted sums, "individuals" if it must see single replies.
        splits: local steps look at parts of a batch, so that batches must not be padded.
        elementwise: the gradient middleware treats every number of the flat vector alike, so that it serves a stack of
            clients as it is.
        wire: the piece changes what an update looks like on the wire and must come last.
        codec: names the lossless packing of the update that this piece makes possible; see ``fedstrata.wire.codec``.
        head: the piece replaces the model's head.
        own_model: ``personalise`` gives a model that the piece keeps, whatever it is given; so no other may have formed
            one before.
        one_phase: the piece counts the local steps of one phase, so that no other may train in several.
        one_start: clients put together what they start from of what they were sent before, so that no other piece may
            send them models of their own.
        grows: the piece sets a setting of the network after each round: it must come first, and no other model than the
            server's is sent or kept.
        plans: what ``plan`` decides. "model": which layers take part and where they stay; "round": which of these train
            in a round; "client": what single clients do of it. Pieces that plan stand in this order.
        reads: a selector of parameters that the server reads in each reply, so that no piece may keep them with the
            clients.
        measures: names of measures that show what the piece does; a run keeps their numbers unless it says
            ``measures=none``.
        source: paper and section.
    """

    needs: ClassVar[Literal["sum", "individuals"]] = "sum"
    splits: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    wire: ClassVar[bool] = False
    codec: ClassVar[str] = "dense"
    head: ClassVar[bool] = False
    own_model: ClassVar[bool] = False
    one_phase: ClassVar[bool] = False
    one_start: ClassVar[bool] = False
    grows: ClassVar[bool] = False
    plans: ClassVar[Plans] = "model"
    reads: ClassVar[str] = ""
    measures: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = ""

    # ---- once
    # -------------------------------------------------------------------------------------------------------------------------

    def model(self, net: Net) -> Net:
        """The model under this piece; it holds in training and in evaluation."""
        return net

    def check(self, setup: Setup) -> None:
        """Refuse, with a MethodError, a run that this piece cannot mean."""

    def notes(self, setup: Setup) -> tuple[str, ...]:
        """What a user must be told of this piece in this run, such as that it changes nothing.

        Each a sentence that says what would help.
        """
        return ()

    def init(self, setup: Setup) -> State:
        """The server slot before round 0."""
        return {}

    def init_client(self, setup: Setup) -> State:
        """The row of a client that has not taken part yet (a template: it is not stored)."""
        return {}

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        """What publications reckon that this piece costs, by label, which says the unit; ``describe`` shows it beside
        what is measured.

        ``forward``: FLOPs of one sample's forward pass, by layer group.
        """
        return {}

    # ---- server, each round
    # -----------------------------------------------------------------------------------------------------------

    def ask(self, slot: State, round: int, setup: Setup) -> ClientQuery | None:  # the field's word  # noqa: A002
        """A question to clients before sampling; asked once more after the last round."""
        return None

    def sample(
        self, eligible: Sequence[int], slot: State, answers: QueryResult | None, rng: Generator, cohort: int
    ) -> Sequence[int]:
        """Who takes part, by place; repeats are allowed. One owner.

        Default: ``cohort`` clients, uniform, without replacement.
        """
        if cohort >= len(eligible):
            return list(eligible)
        return [eligible[i] for i in draw_without_replacement(rng, len(eligible), cohort)]

    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        """Which tensors are trained, sent, averaged and kept this round."""
        return plan

    def send(self, params: Params, slot: State, seat: CohortSlot, rng: Generator, setup: Setup) -> tuple[Params, State]:
        """What the client in this seat starts from, and counted extras; ``rng`` is derived for the round and place."""
        return params, {}

    def weigh(self, replies: Sequence[Reply], slot: State, v: ServerContext) -> Tensor:
        """Weights [C] (or [C, models]) float64. One owner.

        Default: shares of the samples, or uniform, as the run says.
        """
        return uniform_weights(replies) if v.setup.weighting == "uniform" else sample_weights(replies)

    def reduce(self, replies: Sequence[Reply], weights: Tensor, slot: State, v: ServerContext) -> tuple[Params, State]:
        """From replies to the step of the averaged parameters. One owner. Default: the weighted mean, in cohort order.

        An update is relative to what that client was sent, so the difference of what was sent from the model counts
        too. A tensor that only some clients send (``Plan.places``) is averaged over those, their weights scaled to the
        sum of all.
        """
        if weights.dim() > 1:
            raise MethodError(
                "weights [clients, models] say how to average several models; the chain needs a piece that does it in"
                " `reduce`."
            )
        spec = v.layout.spec.only(v.plan.average & v.layout.parameters)
        moves = (_move(reply, sent, v, spec.index) for reply, sent in zip(replies, v.sent, strict=True))
        if any(not spec.index.keys() <= r.delta.spec.index.keys() for r in replies):
            return mean_over_senders(list(moves), weights.tolist(), spec), slot
        total: Tensor | None = None
        for move, weight in zip(moves, weights.tolist(), strict=True):
            total = move.flat * weight if total is None else total.add_(move.flat, alpha=weight)
        assert total is not None, "a round without replies does not reduce"
        return Params(total, spec), slot

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        """From the reduced step to the server's move."""
        return step, slot

    # ---- client, pure tensors
    # ---------------------------------------------------------------------------------------------------------

    def receive(self, p: Params, own: State, v: ClientContext) -> tuple[Params, State]:
        """The start point, and the row; private fits by ``v.fit`` and ``v.scan`` belong here."""
        return p, own

    def objective(self, loss: Loss, v: ClientContext) -> Loss:
        """Middleware round the loss."""
        return loss

    def gradient(self, gradient: Gradient, v: ClientContext) -> Gradient:
        """Middleware round the gradient."""
        return gradient

    step: ClassVar[Callable[..., tuple[Params, Any]] | None] = None
    """``step(self, p, batch, gradient, carry, v) -> (p, carry)``: the local optimiser, with a state of its own.

    One owner; default: the run's.
    """

    def upload(self, delta: Params, own: State, v: ClientContext) -> tuple[Params, State, State]:
        """What is sent (lossy maths lives here), counted mail, and the new row."""
        return delta, {}, own

    def settle(self, own: State, new: Params, v: ClientContext) -> State:
        """A participant's row after the merge of the same round."""
        return own

    def personalise(self, p: Params, own: State, v: ClientContext) -> Params:
        """The model that this client uses itself, from the shared one with its own stored tensors in place."""
        return p

    # -----------------------------------------------------------------------------------------------------------------------------------

    @classmethod
    def overrides(cls, verb: str) -> bool:
        """Whether this class has its own version of a verb."""
        return getattr(cls, verb) is not getattr(Piece, verb)

    def __str__(self) -> str:
        name = type(self).__name__.lower()
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{name}({', '.join(shown)})" if shown else name


def _move(reply: Reply, sent: Params, v: ServerContext, names: Iterable[str]) -> Params:
    """Where one client ended, from the server's model, over these of the parameters that it sent."""
    move = reply.delta.pick(names)
    return move if sent is v.params else move + (sent.pick(move) - v.params.pick(move))


def sample_weights(replies: Sequence[Reply]) -> Tensor:
    """[C] float64: each reply's share of the samples."""
    total = sum(r.samples for r in replies)
    return torch.tensor([r.samples / total for r in replies], dtype=torch.float64)


def uniform_weights(replies: Sequence[Reply]) -> Tensor:
    """[C] float64: 1 / C."""
    return torch.full((len(replies),), 1 / len(replies), dtype=torch.float64)


def draw_without_replacement(rng: Generator, population: int, n: int) -> list[int]:
    """``n`` distinct positions, uniform, in the order drawn.

    The cost follows ``n``, not the population (Floyd's method, then a shuffle).
    """
    chosen: set[int] = set()
    for top in range(population - n, population):
        pick = int(rng.integers(top + 1))
        chosen.add(top if pick in chosen else pick)
    order = np.array(sorted(chosen), dtype=np.int64)
    rng.shuffle(order)
    return [int(i) for i in order]


LARGEST = 3.4028234663852886e38
"""Of float32, in which models compute."""


def require(condition: bool, setting: str, value: object, meaning: str) -> None:  # reads as a sentence  # noqa: FBT001
    """Refuse a hyper-parameter, and always what is no finite float32: ``require(mu >= 0, "fedprox.mu", mu, "a weight,
    at least 0")``.
    """
    each = value if isinstance(value, list | tuple) else [value]
    if not condition or any(isinstance(one, float) and not abs(one) <= LARGEST for one in each):
        raise ConfigError(f"{setting} is {value}; it is {meaning}.")
