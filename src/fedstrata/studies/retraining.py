"""A run's training once more in memory, as it was or with one thing changed.

Without scores between rounds and without early ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import torch

from fedstrata.backends.protocol import Executor
from fedstrata.client.update import ClientFailure, ClientTask
from fedstrata.client.worker import Worker
from fedstrata.common.errors import ConfigError
from fedstrata.config.config import Config
from fedstrata.config.lr_schedules import schedule
from fedstrata.core.chain import Method, name_of
from fedstrata.core.piece import Piece, Reply
from fedstrata.core.plan import Phase, Plan, QueryResult, Setup
from fedstrata.core.state import State
from fedstrata.data.federation import Federation
from fedstrata.data.partition.base import ExplicitPartition
from fedstrata.engine.assembly import Eligible, RunComponents, Sizes
from fedstrata.engine.rounds import Engine

MOST = 10_000  # clients whose samples are derived, one by one, to be taken together


def trained(parts: RunComponents, rounds: int, executor: Executor | None = None) -> Iterator[Engine]:
    """Train in one thread.

    Args:
        parts: of the run.
        rounds: how many; a run that ended early had fewer than it was planned for.
        executor: trains the clients instead of the plain loop.
    Yields:
        the engine, before the first round and after each. It is to be read before the next is asked for.
    """
    engine = Engine(replace(parts, config=_quiet(parts.config), measures={}), "loop", 1)
    if executor is not None:
        engine.executor = executor
    yield engine
    for _ in islice(engine.rounds(), rounds):
        yield engine


def _quiet(config: Config) -> Config:
    ends = dict.fromkeys(("stop.bytes", "stop.flops", "stop.seconds", "stop.accuracy"))
    return config.replace(**{"eval.every": config.rounds + 1, **ends})


# ---- another optimiser
# --------------------------------------------------------------------------------------------------------------------------


def plain_sgd(parts: RunComponents, lr: float) -> RunComponents:
    """The same run with local steps of plain SGD: no momentum, no weight decay, no clipping; the schedule goes by
    ``lr``.

    Raises:
        ConfigError: a piece takes local steps of its own, or cannot go with plain SGD.
    """
    if parts.method.has("step"):
        raise ConfigError(
            f"{name_of(parts.method.owner('step'))} takes local steps of its own; plain SGD in place of them would be"
            " another method."
        )
    setup = replace(parts.setup, optimizer="sgd", momentum=0.0, weight_decay=0.0, lr=lr)
    parts.method.check(setup)
    factor = schedule(parts.config.schedule, parts.config.rounds)

    def make(inner: Callable[[], Worker] = parts.make_worker) -> Worker:
        kit = inner()
        return replace(kit, setup=setup, local=replace(kit.local, clip=None))

    return replace(parts, setup=setup, make=make, lr=lambda t: lr * factor(t))


# ---- one client that holds everything
# -----------------------------------------------------------------------------------------------------------


class Counted:
    """An executor that trains clients in turn and counts, by round, the samples that their training reads."""

    name, workers = "loop", 1

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.read: list[int] = []

    def train(self, works: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """See :class:`Executor`."""
        self.read.append(0)
        phases = {task.cohort_index: {phase.name for phase in work.plan.phases} for work in works}
        for answer in self.inner.train(works):
            if isinstance(answer, Reply):
                self.read[-1] += sum(
                    n for key, n in answer.passes.items() if key.partition(":")[0] in phases[answer.cohort_index]
                )
            yield answer

    def close(self) -> None:
        """See :class:`Executor`."""
        self.inner.close()


@dataclass(frozen=True)
class Pace(Piece):
    """Training whose rounds have lengths of their own: (epochs, steps), one of them, for each round."""

    source: ClassVar[str] = "of our own"
    lengths: tuple[tuple[int | None, int | None], ...] = ()

    # the field's word
    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        """See :class:`Piece`."""
        epochs, steps = self.lengths[round]
        return replace(plan, phases=(Phase(epochs=epochs, steps=steps),))


def pooled(parts: RunComponents, read: Sequence[int]) -> RunComponents:
    """The same model trained centrally: one client that holds the training samples of all.

    Everything is as in the run, the network with what the method changes in it, initial values, batch size, optimiser,
    learning rate by round and augmentation, but for: what the method does to training, which is plain here and moves
    all parameters, of the whole network from the start where the method lets it grow; clients, of which there is one (a
    sample that two held is there twice); and the length of a round, in which it reads as many samples as all
    participants of that round together: whole epochs where that comes out even, otherwise the nearest number of
    batches. State of the optimiser is made anew each round, as on a client.

    Args:
        parts: of the run.
        read: samples that participants read, by round.
    Raises:
        ConfigError: as in :func:`union`.
    """
    federation = union(parts.federation)
    total = len(federation.training(0))
    each = min(parts.setup.local.batch, total)
    lengths = tuple((n // total, None) if n and n % total == 0 else (None, round(n / each)) for n in read)
    method = Method((Pace(lengths=lengths),))
    settings = parts.setup.model.pick(parts.setup.layout.integers)
    start = parts.setup.model | settings.new(torch.zeros_like(settings.flat))  # the whole network
    setup = replace(parts.setup, params=start, clients=1, cohort=1, samples=Sizes(federation), eligible=Eligible(1, ()))

    def make(inner: Callable[[], Worker] = parts.make_worker) -> Worker:
        return replace(inner(), method=method, setup=setup, data=federation)

    config = parts.config.replace(quorum=0, rows="memory")
    return replace(parts, config=config, federation=federation, method=method, setup=setup, make=make)


def union(federation: Federation) -> Federation:
    """One client with the training samples of all that may train, in the order of clients; what they keep for tests and
    validation is left out.

    Raises:
        ConfigError: more than 10,000 clients that are derived when asked for.
    """
    if federation.partition.lazy and federation.clients > MOST:
        raise ConfigError(
            f"{federation.clients:,} clients that are derived when asked for are too many to take their samples"
            " together (settling: against=none)."
        )
    held = [federation.training(i) for i in Eligible(federation.clients, federation.heldout)]
    partition = ExplicitPartition.of("pooled", [torch.cat(held).numpy()])
    return replace(federation, partition=partition, own_test=None, validation=0.0, heldout=())
