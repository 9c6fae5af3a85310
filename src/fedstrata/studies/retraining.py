"""Repeat a run's training in memory, unchanged or with one change.

There is no evaluation between rounds and no early stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from fedstrata.backends.protocol import Executor
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.client.worker import Worker
from fedstrata.common.errors import ConfigError
from fedstrata.config.config import Config
from fedstrata.config.lr_schedules import schedule
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece, Reply, ServerContext
from fedstrata.core.plan import Phase, Plan, Setup
from fedstrata.data.federation import Federation
from fedstrata.data.partition.base import ExplicitPartition
from fedstrata.engine.assembly import Eligible, RunComponents, Sizes
from fedstrata.engine.rounds import Engine

MAX_LAZY_CLIENTS = 10_000  # clients of a lazy partition whose samples are derived one by one to pool them


def retrain(parts: RunComponents, rounds: int, executor: Executor | None = None) -> Iterator[Engine]:
    """Train in one thread.

    Args:
        parts: of the run.
        rounds: how many; a run that stopped early had fewer than planned.
        executor: trains the clients instead of the plain loop.
    Yields:
        the engine, before the first round and after each; read it before the next one is requested.
    """
    engine = Engine(replace(parts, config=_quiet(parts.config), measures={}), "loop", 1)
    if executor is not None:
        engine.executor = executor
    yield engine
    for _ in islice(engine.rounds(), rounds):
        yield engine


def _quiet(config: Config) -> Config:
    """Switch evaluation and early stopping off."""
    ends = dict.fromkeys(("stop.bytes", "stop.flops", "stop.seconds", "stop.accuracy"))
    return config.replace(**{"eval.every": config.rounds + 1, **ends})


# ---- another optimiser


def plain_sgd(parts: RunComponents, lr: float) -> RunComponents:
    """Return the same run with plain SGD: no momentum, weight decay or clipping; the schedule scales ``lr``.

    Raises:
        ConfigError: a piece defines the local step, or is incompatible with plain SGD.
    """
    if parts.method.has("step"):
        raise ConfigError(
            f"{parts.method.owner('step').name} defines the local step; plain SGD instead would be another method."
        )
    local = replace(parts.setup.local, optimizer="sgd", momentum=0.0, weight_decay=0.0, clip=None, lr=lr)
    setup = replace(parts.setup, local=local)
    parts.method.check(setup)
    factor = schedule(parts.config.schedule, parts.config.rounds)

    def make(inner: Callable[[], Worker] = parts.make_worker) -> Worker:
        return with_setup(inner(), setup)

    return replace(parts, setup=setup, make_worker=make, lr=lambda t: lr * factor(t))


def with_setup(worker: Worker, setup: Setup, **changes: Any) -> Worker:
    """Return a worker under another setup."""
    return replace(worker, setup=setup, cache=replace(worker.cache, setup=setup), **changes)


# ---- one client that holds everything


class SampleCounter:
    """An executor that trains clients one by one and counts, by round, the samples that their training reads."""

    name, workers = "loop", 1

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.read: list[int] = []

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """See :class:`Executor`."""
        self.read.append(0)
        phases = {task.cohort_index: {phase.name for phase in task.plan.phases} for task in tasks}
        for reply in self.inner.train(tasks):
            if isinstance(reply, Reply):
                self.read[-1] += sum(
                    n for key, n in reply.cost_by_phase.items() if key.partition(":")[0] in phases[reply.cohort_index]
                )
            yield reply

    def close(self) -> None:
        """See :class:`Executor`."""
        self.inner.close()


@dataclass(frozen=True)
class RoundLengths(Piece):
    """Sets the length of each round: (epochs, steps), of which one is given."""

    lengths: tuple[tuple[int | None, int | None], ...] = ()

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        """See :class:`Piece`."""
        epochs, steps = self.lengths[ctx.round]
        return replace(plan, phases=(Phase(epochs=epochs, steps=steps),))


def pooled(parts: RunComponents, read: Sequence[int]) -> RunComponents:
    """Return the same model trained centrally: one client that holds the training samples of all.

    The network (with the method's changes to it), initial values, batch size, optimiser, learning rate by round and
    augmentation equal those of the run. Three things differ. Training is plain: it moves all parameters, of the whole
    network from the start if the method lets it grow. There is one client; a sample that two clients held occurs twice.
    A round reads as many samples as all participants of that round together: whole epochs if that is a whole number,
    otherwise the nearest number of batches. Optimiser state is new in each round, as on a client.

    Args:
        parts: of the run.
        read: samples that participants read, by round.
    Raises:
        ConfigError: as in :func:`pooled_federation`.
    """
    federation = pooled_federation(parts.federation)
    total = len(federation.training(0))
    each = min(parts.setup.local.batch, total)
    lengths = tuple((n // total, None) if n and n % total == 0 else (None, round(n / each)) for n in read)
    method = Method((RoundLengths(lengths=lengths),))
    integers = parts.setup.model.pick(parts.setup.layout.integers)
    start = parts.setup.model | integers.new(torch.zeros_like(integers.flat))  # the whole network
    setup = replace(parts.setup, model=start, clients=1, cohort=1, samples=Sizes(federation), eligible=Eligible(1, ()))

    def make(inner: Callable[[], Worker] = parts.make_worker) -> Worker:
        return with_setup(inner(), setup, method=method, data=federation)

    config = parts.config.replace(quorum=0, client_state="memory")
    return replace(parts, config=config, federation=federation, method=method, setup=setup, make_worker=make)


def pooled_federation(federation: Federation) -> Federation:
    """Build one client with the training samples of all eligible clients, in client order, without tests or validation.

    Raises:
        ConfigError: a lazy partition of more than 10,000 clients.
    """
    if federation.partition.lazy and federation.clients > MAX_LAZY_CLIENTS:
        raise ConfigError(
            f"the lazy partition has {federation.clients:,} clients, too many to pool their samples; at most"
            f" {MAX_LAZY_CLIENTS:,} (settling: against=none)."
        )
    held = [federation.training(i) for i in Eligible(federation.clients, federation.heldout)]
    partition = ExplicitPartition.of("pooled", [torch.cat(held).numpy()])
    return replace(federation, partition=partition, own_test=None, validation=0.0, heldout=())
