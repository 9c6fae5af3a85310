"""What is fixed for a run (Setup), for a round (Plan), and what clients answer before it (ClientQuery)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from torch import Tensor

from fedstrata.core.layout import Layout, Names
from fedstrata.core.network import Net
from fedstrata.core.params import Model, Params

Split: TypeAlias = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Phase:
    """One stretch of local training.

    Attributes:
        name: what ``ctx.phase`` shows.
        train: parameters that move; None is the plan's ``train``.
        epochs, steps: the length, one of them; both None is the run's length.
        lr: factor on the run's local learning rate.
    """

    name: str = "local"
    train: Names | None = None
    epochs: int | None = None
    steps: int | None = None
    lr: float = 1.0


@dataclass(frozen=True)
class Plan:
    """Which tensors play which part in a round.

    All are sets of tensor names (parameters and norm statistics), from ``layout.select``.

    Attributes:
        train: parameters that the client moves.
        download: sent by the server. A tensor that is not sent is the client's stored value or, where it stored none,
            what every client has known from the start (the initial model, a frozen head).
        upload: sent by the client, as differences from what it received.
        aggregate: averaged into the server's model, within ``upload``.
        client_local: stored by the client after training.
        phases: local training, in order.
        per_client: for single cohort indices, fields that differ (a straggler's phases, a small device's train set).
        cohort: the client at each cohort index; empty where a plan is made outside a round.
    """

    train: Names
    download: Names
    upload: Names
    aggregate: Names
    client_local: Names = frozenset()
    phases: tuple[Phase, ...] = (Phase(),)
    per_client: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    cohort: tuple[int, ...] = ()

    def at(self, cohort_index: int) -> Plan:
        """Return the plan of one client of the cohort."""
        changes = self.per_client.get(cohort_index)
        return replace(self, **changes, per_client={}) if changes else self

    def change_each(self, changes: Mapping[int, Mapping[str, Any]]) -> Plan:
        """Return a plan in which fields differ for several clients, by cohort index."""
        merged = {index: {**self.per_client.get(index, {}), **fields} for index, fields in changes.items()}
        return replace(self, per_client={**self.per_client, **merged})

    @property
    def trained(self) -> Names:
        """Parameters that move in some phase."""
        return frozenset[str]().union(*(self.train if p.train is None else self.train & p.train for p in self.phases))

    def private(self, names: Names) -> Plan:
        """Keep these tensors with each client: stored there, neither sent nor averaged."""
        return replace(
            self,
            download=self.download - names,
            upload=self.upload - names,
            aggregate=self.aggregate - names,
            client_local=self.client_local | names,
        )

    def without(self, names: Names) -> Plan:
        """Leave these tensors out: every client has them from the start and no client moves them."""
        return replace(
            self,
            train=self.train - names,
            download=self.download - names,
            upload=self.upload - names,
            aggregate=self.aggregate - names,
            client_local=self.client_local - names,
        )

    def only(self, names: Names, layout: Layout) -> Plan:
        """Train, upload and aggregate only these parameters; the others keep their values. Statistics are as before.

        Phases that would move none of them are left out; where no phase is left, these train for the length of the
        last one.
        """
        frozen = layout.trainable - names

        def left(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
            return tuple(p for p in phases if p.train is None or p.train & names) or (replace(phases[-1], train=None),)

        def less(fields: Mapping[str, Any]) -> dict[str, Any]:
            cut = {n: fields[n] - frozen for n in ("train", "upload", "aggregate") if n in fields}
            return {**fields, **cut, **({"phases": left(fields["phases"])} if "phases" in fields else {})}

        mine = less({n: getattr(self, n) for n in ("train", "upload", "aggregate", "phases")})
        return replace(self, **mine, per_client={i: less(changes) for i, changes in self.per_client.items()})


@dataclass(frozen=True)
class ClientQuery:
    """A query to clients, answered before sampling and planning.

    Attributes:
        models: parameters to score; None is the server's current model. Each queried client is sent all of them.
        split: whose samples: the client's own "train", "validation" or "test".
        metric: mean "loss" or "accuracy".
        clients: who is queried; None is everyone.
    """

    models: tuple[Params | None, ...]
    split: Split = "validation"
    metric: Literal["loss", "accuracy"] = "loss"
    clients: tuple[int, ...] | None = None


@dataclass(frozen=True)
class QueryResult:
    """What clients answered.

    Attributes:
        clients: who answered, ascending.
        scores: [clients, models] float64; NaN where a client has no sample on that split.
    """

    clients: tuple[int, ...]
    scores: Tensor


class CohortSlot(NamedTuple):
    """One position of a round's cohort.

    Attributes:
        cohort_index: in the cohort, or -1 outside a round, where a client forms its personal model.
        client: its id.
    """

    cohort_index: int
    client: int

    @property
    def training(self) -> bool:
        """Whether the client trains in this round."""
        return self.cohort_index >= 0


class Load(NamedTuple):
    """What a local step costs a client.

    Attributes:
        flops: of one sample, forward and backward.
        memory: bytes at the peak of a step on one batch: the model, the live tensors of the two passes, gradients and
            optimizer state.
    """

    flops: float
    memory: int


class Samples(Protocol):
    """What a piece may know about the federation without touching data."""

    def size(self, client: int) -> int:
        """Return the training samples of a client."""

    def counts(self, client: int) -> Tensor:
        """Return [classes] int64: training labels of a client."""


@dataclass(frozen=True)
class LocalSettings:
    """How clients train; the settings ``local.*`` of a run.

    Attributes:
        epochs, steps: the length of local training; one of them is None.
        batch: samples of a local step; draw: how steps read the data (cycle, fresh, replace).
        lr: learning rate, before the schedule.
        optimizer: sgd, adam or adamw; momentum, weight_decay: of it; clip: largest gradient norm, or None.
        precision: float32 or bfloat16, of forward passes.
        activation_cache_mb: memory for cached activations of frozen layers, per client; 0 caches none.
    """

    epochs: int | None = 1
    steps: int | None = None
    batch: int = 32
    draw: str = "cycle"
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    precision: str = "float32"
    activation_cache_mb: int = 0


@dataclass(frozen=True)
class Setup:
    """What is fixed for a run.

    Attributes:
        layout: names, groups and roles.
        net: the model's functions.
        model: initial parameters and statistics.
        classes: outputs of the head.
        clients: registered; cohort: taking part in a round; rounds: planned.
        seed: of the run.
        samples: sizes and label counts of clients.
        load: what a local step costs in which only these parameters are trained, measured on a batch of a client.
        local: how clients train.
        weighting: how clients count in averages.
        eligible: clients that may take part (all but those held out).
        merges_single: a last batch of one sample joins the one before it, because a norm looks at the batch.
    """

    layout: Layout
    net: Net
    model: Model
    classes: int
    clients: int
    cohort: int
    rounds: int
    seed: int
    samples: Samples
    load: Callable[[Names], Load] = field(repr=False, compare=False)
    local: LocalSettings = LocalSettings()
    weighting: Literal["samples", "uniform"] = "samples"
    eligible: Sequence[int] = ()
    merges_single: bool = False

    def local_steps(self, samples: int, *, epochs: int | None = None, steps: int | None = None) -> int:
        """Count the local steps of a client with that many samples; partial batches count.

        The length is the run's unless another is given.
        """
        local = self.local
        steps = local.steps if epochs is None and steps is None else steps
        if steps is not None:
            return steps
        return (epochs or local.epochs or 0) * batches_of(samples, local.batch, merge=self.merges_single)


def batches_of(samples: int, batch: int, *, merge: bool) -> int:
    """Count the batches in one pass; with ``merge``, a last batch of a single sample joins the one before it.

    >>> batches_of(9, 4, merge=False), batches_of(9, 4, merge=True), batches_of(1, 4, merge=True)
    (3, 2, 1)
    """
    full, tail = divmod(samples, batch)
    return full if merge and tail == 1 and full else full + (tail > 0)
