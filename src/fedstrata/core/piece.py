"""The vocabulary: what a federated method may change, as a difference from FedAvg.

A :class:`Piece` is a frozen value with hyper-parameters and nothing else. It overrides a few verbs; every default is
the identity or plain FedAvg. A verb takes its subject first and a context last. State goes in and comes out: it arrives
as ``ctx.state`` and leaves as a returned value, so that it is checkpointed and any worker may serve any client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedstrata.common.errors import ConfigError
from fedstrata.core.codec import Codec
from fedstrata.core.layout import Layout, Names
from fedstrata.core.network import Batch, Net
from fedstrata.core.params import Model, Params
from fedstrata.core.plan import ClientQuery, CohortSlot, Phase, Plan, QueryResult, Setup
from fedstrata.core.state import ClientState, State

if TYPE_CHECKING:
    from numpy.random import Generator

Loss: TypeAlias = Callable[[Params, Batch], Tensor]
Gradient: TypeAlias = Callable[[Params, Batch], Params]
Batching: TypeAlias = Literal["any", "elementwise", "splits"]
Plans: TypeAlias = Literal["model", "round", "client"]
Direction: TypeAlias = Literal["up", "down"]


# ---- what client code sees ------------------------------------------------------------------------------------------


@dataclass
class ClientContext:
    """What a client verb may read.

    Attributes:
        setup: the run.
        net: the model's functions.
        received: where this client starts: what was sent, with its stored tensors in place; a constant.
        down_payload: what the server sent for this piece beside the model.
        state: what this piece keeps for this client.
        round: zero-based.
        samples: training samples; counts: [classes] float, how many of each label.
        steps: local steps over all phases.
        lr: local learning rate of this round.
        phase: the current one; plan: of this client.
        first_time: the client has not taken part yet; nothing of it is stored.
        loss: the plain one, mean over a batch.
        gradient: at any parameters, of the chain's loss during training and of the plain loss elsewhere.
    """

    setup: Setup
    net: Net
    received: Model
    down_payload: State
    state: State
    round: int
    samples: int
    counts: Tensor
    steps: int
    lr: float
    phase: Phase
    plan: Plan
    first_time: bool
    loss: Loss
    gradient: Gradient
    _tools: Tools
    _outcome: Outcome | None = None
    _piece: str = ""

    @property
    def layout(self) -> Layout:
        """Names, groups, roles."""
        return self.setup.layout

    @property
    def trained(self) -> Outcome:
        """The outcome of local training; it exists in ``upload``."""
        assert self._outcome is not None, "the outcome of training is known in `upload`"
        return self._outcome

    def noise(self, name: str, shape: Sequence[int], kind: Literal["uniform", "normal"] = "uniform") -> Tensor:
        """Draw numbers of this client, round, piece and name, and inside a local step of that step: U[0, 1) or N(0, 1).

        The same call gives the same numbers. Uniform numbers with a shorter first axis are the first of those with a
        longer one.
        """
        return self._tools.noise(f"{self._piece}.{name}", shape, kind)

    def fit(self, start: Model, purpose: str, **options: Any) -> Model:
        """Train privately with the engine's loop; see :class:`Tools`."""
        return self._tools.fit(start, f"{self._piece}.{purpose}", **options)

    def scan(self, function: Callable[[Any, Batch], Any], carry: Any, purpose: str, **options: Any) -> Any:
        """Fold a function over batches of this client's samples; see :class:`Tools`."""
        return self._tools.scan(function, carry, f"{self._piece}.{purpose}", **options)


@dataclass(frozen=True)
class Outcome:
    """What local training ended with.

    Attributes:
        model: where it ended, with its statistics.
        opt_state: what ``step`` carried, or None.
        loss: mean training loss.
    """

    model: Model
    opt_state: Any
    loss: float


class Tools(Protocol):
    """What the engine does for a piece on a client."""

    def noise(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        """Draw derived random numbers."""

    def fit(
        self,
        start: Model,
        purpose: str,
        *,
        loss: Loss | None = None,
        gradient: Callable[[Gradient], Gradient] | None = None,
        train: Names | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
    ) -> Model:
        """Train from ``start`` on this client's samples with the run's local optimizer.

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
        self,
        function: Callable[[Any, Batch], Any],
        carry: Any,
        purpose: str,
        *,
        epochs: int = 1,
        share: float = 1.0,
    ) -> Any:
        """Return the last ``carry = function(carry, batch)`` over the client's batches.

        ``share`` < 1 reads that part of the samples.
        """


OUTSIDE = CohortSlot(-1, -1)
"""Outside a round, where a client forms its personal model."""


# ---- what server code sees ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contribution:
    """What the server knows of a client's reply before it reads it.

    Attributes:
        cohort_index: in the cohort; client: its id.
        samples: training samples; steps: local steps.
    """

    cohort_index: int
    client: int
    samples: int
    steps: int


@dataclass(frozen=True)
class Reply(Contribution):
    """What one client sent back.

    Attributes:
        delta: difference over the plan's ``upload`` parameters, from what the client received.
        statistics: norm statistics over the plan's ``upload``, as values.
        up_payload: further counted tensors, by piece.
        loss: mean training loss.
        cost_by_phase: samples that went through local steps, by purpose, and through frozen layers that ran once a
            sample; the ledger turns them into FLOPs.
        client_state: what the client stores; it stays with the client.
        activation_cache_use: how often activations of frozen layers were cached over the local steps, or why not, by
            phase.
    """

    delta: Params
    statistics: Params
    up_payload: Mapping[str, State] = field(default_factory=dict)
    loss: float = float("nan")
    cost_by_phase: Mapping[str, int] = field(default_factory=dict)
    client_state: ClientState = field(default_factory=ClientState)
    activation_cache_use: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerContext:
    """What a server verb may read.

    Attributes:
        setup: the run.
        model: the server's, before the round.
        state: what this piece keeps on the server.
        round: zero-based.
        lr: local learning rate of this round.
        answers: to this piece's query, or None.
        plan: of the round, once it is planned; before, and outside a round, FedAvg's.
        slot: in ``send``, the position of the client in the cohort.
        contributions: of the accepted replies, in cohort order.
        sent: in ``screen``, ``observe`` and ``reduce``, what each accepted client was sent.
        weights: in ``observe`` and ``merge``, those of the accepted replies, [C] or [C, M] float64; empty before.
        payload_sums: in ``merge``, sums of this piece's payload over the accepted replies, by name.
    """

    setup: Setup
    model: Model
    state: State
    round: int
    lr: float
    plan: Plan
    _make_rng: Callable[[], Generator] = field(repr=False)
    answers: QueryResult | None = None
    slot: CohortSlot = OUTSIDE
    contributions: Sequence[Contribution] = ()
    sent: Sequence[Model] = ()
    weights: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    payload_sums: State = field(default_factory=State)

    @property
    def layout(self) -> Layout:
        """Names, groups, roles."""
        return self.setup.layout

    @cached_property
    def rng(self) -> Generator:
        """Derive the generator of this piece and round (in ``send``, of the slot too); each context begins it anew."""
        return self._make_rng()


# ---- the piece ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """A difference from FedAvg. Subclasses are frozen dataclasses of hyper-parameters that override a few verbs.

    Class attributes:
        name: what users write; the class name in lower case unless it is set.
        batching: how local steps may be stacked over clients. "elementwise": the gradient middleware treats every
            number of the flat vector alike, so that it serves a stack of clients unchanged. "splits": local steps look
            at parts of a batch, so that batches must not be padded. "any" otherwise.
        plans: what ``plan`` decides; pieces plan in this order. "model": which layers take part and where they are
            stored; "round": which of these train in a round; "client": what single clients do of it.
    """

    name: ClassVar[str] = "fedavg"
    batching: ClassVar[Batching] = "any"
    plans: ClassVar[Plans] = "model"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def __post_init__(self) -> None:
        check_settings(self)

    # ---- once

    def model(self, net: Net) -> Net:
        """Return the model under this piece; it holds in training and in evaluation."""
        return net

    def check(self, setup: Setup) -> None:
        """Refuse, with a MethodError, a run that is invalid for this piece."""

    def check_chain(self, pieces: Sequence[Piece]) -> None:
        """Refuse, with a MethodError, a chain that is invalid for this piece."""

    def check_plan(self, plan: Plan, layout: Layout) -> None:
        """Refuse, with a MethodError, a round's plan that is invalid for this piece."""

    def notes(self, setup: Setup) -> tuple[str, ...]:
        """Return what users must know of this piece in this run, such as that it changes nothing.

        Each note is a sentence that says what would help.
        """
        return ()

    def init_server(self, setup: Setup) -> State | dict[str, Params | Tensor]:
        """Return the server state before round 0."""
        return State()

    def init_client(self, setup: Setup) -> State | dict[str, Params | Tensor]:
        """Return the state of a client that has not taken part yet: a template, which is not stored."""
        return State()

    def codec(self, direction: Direction, layout: Layout) -> Mapping[str, Codec]:
        """Return the lossless packing of what is sent, by selector of tensors; the first match counts.

        Lossy arithmetic belongs in ``compress``; a codec packs its result exactly.
        """
        return {}

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        """Return costs that publications state for this piece, by label with the unit; ``describe`` shows them.

        ``forward``: FLOPs of one sample's forward pass, by layer group.
        """
        return {}

    # ---- server, each round

    def query(self, ctx: ServerContext) -> ClientQuery | None:
        """Return a query to clients before sampling; it is asked once more after the last round."""
        return None

    def sample(self, eligible: Sequence[int], ctx: ServerContext) -> Sequence[int]:
        """Return who takes part, by cohort index; repeats are allowed. One owner.

        Default: ``setup.cohort`` clients, uniform, without replacement.
        """
        cohort = ctx.setup.cohort
        if cohort >= len(eligible):
            return list(eligible)
        return [eligible[i] for i in draw_without_replacement(ctx.rng, len(eligible), cohort)]

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        """Return which tensors are trained, sent, averaged and stored by clients in this round."""
        return plan

    def send(self, model: Model, ctx: ServerContext) -> tuple[Params, Mapping[str, Params | Tensor]]:
        """Return what the client at ``ctx.slot`` starts from, and a counted payload."""
        return model, {}

    def weigh(self, contributions: Sequence[Contribution], ctx: ServerContext) -> Tensor:
        """Return weights [C], or [C, M] for M server models, float64. One owner.

        They are known before replies are read, so that replies can be summed as they arrive. Default: shares of the
        samples, or uniform, as the run says.
        """
        return uniform_weights(contributions) if ctx.setup.weighting == "uniform" else sample_weights(contributions)

    def screen(self, replies: Sequence[Reply], ctx: ServerContext) -> Sequence[Reply]:
        """Return the replies that the step is made of: clipped, bucketed or without those that are rejected.

        ``ctx.sent`` and ``ctx.contributions`` belong to ``replies``. Pieces screen left to right.
        """
        return replies

    def observe(self, replies: Sequence[Reply], ctx: ServerContext) -> Mapping[str, Params | Tensor]:
        """Return the server state after a look at single replies; ``merge`` sees it next."""
        return ctx.state

    def reduce(
        self, replies: Sequence[Reply], weights: Tensor, ctx: ServerContext
    ) -> tuple[Params, Mapping[str, Params | Tensor]]:
        """Return the step of the aggregated parameters from single replies, and the server state. One owner.

        A chain without an owner sums moves as they arrive: see ``fedstrata.engine.aggregation``.
        """
        raise NotImplementedError("the engine sums replies where no piece reduces them")

    def merge(self, step: Params, ctx: ServerContext) -> tuple[Params, Mapping[str, Params | Tensor]]:
        """Return the server's move from the reduced step, and the server state.

        With weights [C, M] the step has a leading axis [M, P] of moves from the server's model; the piece that gave
        those weights returns one move [P].
        """
        return step, ctx.state

    # ---- client, pure tensors

    def receive(self, model: Model, ctx: ClientContext) -> tuple[Model, Mapping[str, Params | Tensor]]:
        """Return the start point and the client state; private fits by ``ctx.fit`` and ``ctx.scan`` belong here."""
        return model, ctx.state

    def objective(self, loss: Loss, ctx: ClientContext) -> Loss:
        """Wrap the loss."""
        return loss

    def gradient(self, gradient: Gradient, ctx: ClientContext) -> Gradient:
        """Wrap the gradient."""
        return gradient

    step: ClassVar[Callable[..., tuple[Params, Any]] | None] = None
    """``step(self, p, batch, gradient, opt_state, ctx) -> (p, opt_state)``: a local optimizer. One owner."""

    def upload(
        self, delta: Params, ctx: ClientContext
    ) -> tuple[Params, Mapping[str, Params | Tensor], Mapping[str, Params | Tensor]]:
        """Return what is sent, a counted payload, and the client state."""
        return delta, {}, ctx.state

    def compress(self, delta: Params, ctx: ClientContext) -> Params:
        """Return what the server will decode of ``delta``: the lossy part of a packing. One owner, after ``upload``."""
        return delta

    def feedback(self, intended: Params, sent: Params, ctx: ClientContext) -> Mapping[str, Params | Tensor]:
        """Return the client state, given what was to be sent and what ``compress`` left of it."""
        return ctx.state

    def settle(self, new: Model, ctx: ClientContext) -> Mapping[str, Params | Tensor]:
        """Return a participant's client state after the merge of the same round."""
        return ctx.state

    def personal_model(self, model: Model, ctx: ClientContext) -> Model:
        """Return the model that this client keeps for itself, whatever it is given. One owner."""
        return model

    def refine(self, model: Model, ctx: ClientContext) -> Model:
        """Return the model that this client uses itself, from its personal one or the shared one."""
        return model

    # ---- helpers

    @classmethod
    def overrides(cls, *verbs: str) -> bool:
        """Say whether this class has a version of one of these verbs."""
        return any(getattr(cls, verb) is not getattr(Piece, verb) for verb in verbs)

    def __str__(self) -> str:
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{self.name}({', '.join(shown)})" if shown else self.name


# ---- settings -------------------------------------------------------------------------------------------------------

LARGEST = 3.4028234663852886e38
"""The largest finite float32, the type in which models compute."""


def setting(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare a hyper-parameter with its range; None is always allowed where it is the default.

    ``mu: float = setting(0.01, "the weight of the proximal term, at least 0", least=0)``
    """
    return field(
        default=default,
        metadata={"meaning": meaning, "least": least, "above": above, "most": most, "below": below},
    )


def check_settings(piece: Piece) -> None:
    """Refuse hyper-parameters out of their declared range, and always what is no finite float32.

    Raises:
        ConfigError: it names the setting, its value and what it means.
    """
    for declared in fields(piece):
        value, bounds = getattr(piece, declared.name), declared.metadata
        if not bounds or (value is None and declared.default is None):
            continue
        inside = (
            (bounds["least"] is None or value >= bounds["least"])
            and (bounds["above"] is None or value > bounds["above"])
            and (bounds["most"] is None or value <= bounds["most"])
            and (bounds["below"] is None or value < bounds["below"])
        )
        require(inside, f"{piece.name}.{declared.name}", value, bounds["meaning"])


def require(condition: bool, name: str, value: object, meaning: str) -> None:  # noqa: FBT001
    """Refuse a hyper-parameter, and always what is no finite float32.

    ``require(mu >= 0, "fedprox.mu", mu, "a weight, at least 0")``
    """
    each = value if isinstance(value, list | tuple) else [value]
    if not condition or any(isinstance(one, float) and not abs(one) <= LARGEST for one in each):
        raise ConfigError(f"{name} is {value}; it is {meaning}.")


# ---- weights and draws ----------------------------------------------------------------------------------------------


def sample_weights(contributions: Sequence[Contribution]) -> Tensor:
    """Return [C] float64: each client's share of the samples."""
    total = sum(c.samples for c in contributions)
    return torch.tensor([c.samples / total for c in contributions], dtype=torch.float64)


def uniform_weights(contributions: Sequence[Contribution]) -> Tensor:
    """Return [C] float64: 1 / C."""
    return torch.full((len(contributions),), 1 / len(contributions), dtype=torch.float64)


def move_of(reply: Reply, sent: Model, model: Model, names: Names | None = None) -> Params:
    """Return where one client ended, relative to the server's model, over the parameters that it sent.

    An update is relative to what that client was sent, so the difference of that from the server's model counts too.

    Args:
        reply: of the client.
        sent: what it was sent.
        model: the server's, before the round.
        names: of these parameters only.
    """
    move = reply.delta if names is None else reply.delta.pick(names)
    return move if sent is model else move + (sent.pick(move) - model.pick(move))


def draw_without_replacement(rng: Generator, population: int, n: int) -> list[int]:
    """Draw ``n`` distinct positions, uniform, in random order; the cost follows ``n``, not the population.

    Floyd's method, then a shuffle.
    """
    chosen: set[int] = set()
    for top in range(population - n, population):
        pick = int(rng.integers(top + 1))
        chosen.add(top if pick in chosen else pick)
    order = np.array(sorted(chosen), dtype=np.int64)
    rng.shuffle(order)
    return [int(i) for i in order]
