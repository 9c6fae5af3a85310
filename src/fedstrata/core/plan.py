"""What is fixed for a run (Setup), for a round (Plan), and what is asked of clients before it (Ask)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from torch import Tensor

from fedstrata.core.layout import Layout, Names
from fedstrata.core.network import Net
from fedstrata.core.params import Params

Split: TypeAlias = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Phase:
    """One stretch of local training.

    Attributes:
        name: what ``v.phase`` shows.
        train: parameters that move; None is the plan's ``train``.
        epochs, steps: the length, one of them; both None is the run's own.
        lr: factor on the run's local learning rate.
    """

    name: str = "local"
    train: Names | None = None
    epochs: int | None = None
    steps: int | None = None
    lr: float = 1.0


@dataclass(frozen=True)
class Plan:
    """Which tensors play which part in a round. All are sets of tensor names (parameters and norm statistics), from
    ``layout.select``.

    Attributes:
        train: parameters that the client moves.
        down: sent by the server. A tensor that is not sent is the client's own stored value, or, where it stored none,
            what every client has known from the start (the initial model, a frozen head).
        up: sent by the client, as differences from what it started with.
        average: averaged into the server's model, within ``up``.
        keep: stored by the client when it has trained.
        phases: local training, in order.
        places: for single places of the cohort, fields that differ (a straggler's phases, a small device's train set).
        cohort: who sits at each place; empty where a plan is made outside a round.
    """

    train: Names
    down: Names
    up: Names
    average: Names
    keep: Names = frozenset()
    phases: tuple[Phase, ...] = (Phase(),)
    places: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    cohort: tuple[int, ...] = ()

    def at(self, place: int) -> Plan:
        """The plan of one place of the cohort."""
        own = self.places.get(place)
        return replace(self, **own, places={}) if own else self

    @property
    def moved(self) -> Names:
        """Parameters that move in some phase."""
        return frozenset[str]().union(*(self.train if p.train is None else self.train & p.train for p in self.phases))

    def private(self, names: Names) -> Plan:
        """These tensors stay with each client: stored there, neither sent nor averaged."""
        return replace(
            self, down=self.down - names, up=self.up - names, average=self.average - names, keep=self.keep | names
        )

    def without(self, names: Names) -> Plan:
        """These tensors take no part at all: every client has them from the start and nobody moves them."""
        return replace(
            self,
            train=self.train - names,
            down=self.down - names,
            up=self.up - names,
            average=self.average - names,
            keep=self.keep - names,
        )

    def only(self, names: Names, layout: Layout) -> Plan:
        """Of all parameters, only these are trained, sent up and averaged; the others stand still where they are.
        Statistics go as before.

        Phases in which nothing of these would move are left out; where none is left, these train for the length of the
        last.
        """
        frozen = layout.parameters - names - layout.settings

        def left(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
            return tuple(p for p in phases if p.train is None or p.train & names) or (replace(phases[-1], train=None),)

        def less(own: Mapping[str, Any]) -> dict[str, Any]:
            cut = {n: own[n] - frozen for n in ("train", "up", "average") if n in own}
            return {**own, **cut, **({"phases": left(own["phases"])} if "phases" in own else {})}

        places = {place: less(own) for place, own in self.places.items()}
        return replace(self, **less({n: getattr(self, n) for n in ("train", "up", "average", "phases")}), places=places)


@dataclass(frozen=True)
class ClientQuery:
    """A question to clients, answered before sampling and planning.

    Attributes:
        models: parameters to score; None stands for the server's current model. Each asked client is sent all of them.
        split: whose samples: the client's own "train", "validation" or "test".
        what: mean "loss" or "accuracy".
        clients: who is asked; None is everyone.
    """

    models: tuple[Params | None, ...]
    split: Split = "validation"
    what: Literal["loss", "accuracy"] = "loss"
    clients: tuple[int, ...] | None = None


@dataclass(frozen=True)
class QueryResult:
    """What clients said.

    Attributes:
        clients: who answered, ascending.
        scores: [clients, models] float64; NaN where a client has no sample on that split.
    """

    clients: tuple[int, ...]
    scores: Tensor


@dataclass(frozen=True)
class CohortSlot:
    """Where a client sits in a round.

    Attributes:
        place: in the cohort, or -1 outside a round, where a client forms the model that it uses itself; client: who
            sits there; round: zero-based.
        cohort: all clients by place, with repeats.
        answers: to this piece's question, or None.
    """

    place: int
    client: int
    round: int
    cohort: tuple[int, ...]
    answers: QueryResult | None = None


class Load(NamedTuple):
    """What a local step costs a client.

    Attributes:
        flops: of one sample, forward and backward.
        memory: bytes at the peak of a step on one batch: the model, what is alive at once in the two passes, gradients
            and optimiser state.
    """

    flops: float
    memory: int


class Samples(Protocol):
    """What a piece may know about the federation without touching data."""

    def size(self, client: int) -> int:
        """Training samples of a client."""

    def counts(self, client: int) -> Tensor:
        """[classes] int64: training labels of a client."""


@dataclass(frozen=True)
class Setup:
    """What is fixed for a run.

    Attributes:
        layout: names, groups and roles.
        net: the model's functions.
        params: initial parameters, with initial statistics.
        classes: outputs of the head.
        clients: registered; cohort: taking part in a round; rounds: planned.
        seed: of the run.
        samples: sizes and label counts of clients.
        load: what a local step costs in which only these parameters are trained, measured on a batch of a client.
        epochs, steps, batch, lr, optimizer, momentum, weight_decay: local settings (one of epochs and steps is None).
        weighting: how clients count in averages.
        eligible: clients that may take part (all but those held out).
        merges: a last batch of one sample is merged into the one before it, because a norm looks at the batch.
    """

    layout: Layout
    net: Net
    params: Params
    classes: int
    clients: int
    cohort: int
    rounds: int
    seed: int
    samples: Samples
    load: Callable[[Names], Load] = field(repr=False, compare=False)
    epochs: int | None = 1
    steps: int | None = None
    batch: int = 32
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    weighting: Literal["samples", "uniform"] = "samples"
    eligible: Sequence[int] = ()
    merges: bool = False

    def local_steps(self, samples: int, *, epochs: int | None = None, steps: int | None = None) -> int:
        """Local steps of a client with that many samples; the run's length unless another is given.

        Partial batches count.
        """
        steps = self.steps if epochs is None and steps is None else steps
        return (
            steps
            if steps is not None
            else (epochs or self.epochs or 0) * batches_of(samples, self.batch, merge=self.merges)
        )


def batches_of(samples: int, batch: int, *, merge: bool) -> int:
    """Batches in one pass over that many samples; with ``merge``, a last one of a single sample joins the one before
    it.

    >>> batches_of(9, 4, merge=False), batches_of(9, 4, merge=True), batches_of(1, 4, merge=True)
    (3, 2, 1)
    """
    full, tail = divmod(samples, batch)
    return full if merge and tail == 1 and full else full + (tail > 0)
