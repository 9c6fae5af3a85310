"""Run methods on toys in memory, collect everything that the runs leave, and compare it exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from fedstrata.backends.protocol import Executor
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.core.chain import Method
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Piece, Reply
from fedstrata.core.state import ClientState, State
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.rounds import Engine
from fedstrata.engine.rows import Row
from fedstrata.engine.server import Server
from fedstrata.testing.toys import Toy, parts

Results: TypeAlias = "list[Reply | ClientFailure]"
Change: TypeAlias = Callable[[Results], Results]
Order: TypeAlias = Callable[[list[ClientTask]], list[ClientTask]]


class RecordingExecutor:
    """Passes the tasks and replies of an executor through functions, and records them."""

    def __init__(
        self, inner: Executor, change: Change = lambda replies: replies, order: Order = lambda tasks: tasks
    ) -> None:
        self.inner, self.change, self.order = inner, change, order
        self.name, self.workers = inner.name, inner.workers
        self.tasks: list[list[ClientTask]] = []
        self.replies: list[list[Reply]] = []

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """See :class:`Executor`."""
        results = self.change(list(self.inner.train(self.order(list(tasks)))))
        self.tasks.append(list(tasks))
        self.replies.append(sorted((r for r in results if isinstance(r, Reply)), key=lambda r: r.cohort_index))
        yield from results

    def close(self) -> None:
        """See :class:`Executor`."""
        self.inner.close()


class RecordingEngine(Engine):
    """An engine whose executor is recorded."""

    executor: RecordingExecutor


def engine(components: RunComponents, executor: str = "loop", workers: int = 1, **wrap: Any) -> RecordingEngine:
    """Build an engine whose executor is recorded; ``wrap`` is for :class:`RecordingExecutor`."""
    built = RecordingEngine(components, executor, workers)
    built.executor = RecordingExecutor(built.executor, **wrap)
    return built


@dataclass
class Outcome:
    """Everything that a run leaves.

    Attributes:
        model: the server's.
        models: the personal model of every client.
        states: of the server, by piece.
        clients: the stored tensors of every client by flat name, None where nothing is stored.
        rows: of the rounds.
    """

    model: Model
    models: list[Model]
    states: dict[str, State]
    clients: list[Mapping[str, torch.Tensor] | None]
    rows: list[Row] = field(default_factory=list)


def outcome(run: Engine, rows: Sequence[Row] = ()) -> Outcome:
    """Collect the server's model and states, and the personal model and the state of every client."""
    clients = range(run.parts.federation.clients)
    return Outcome(
        run.server.model,
        [client_model(run, i) for i in clients],
        dict(run.server.states),
        [run.states.get(i) for i in clients],
        list(rows),
    )


def client_model(run: Engine, client: int) -> Model:
    """Form the model that a client uses itself, as after the last round."""
    return run.evaluator.model(run.worker, run.serving.task_of(client, run.server.model)).clone()


def finish(run: Engine) -> Outcome:
    """Run all remaining rounds and collect the outcome."""
    try:
        rows = list(run.rounds())
        return outcome(run, rows)
    finally:
        run.close()


def play(
    method: str | Piece | Method = "fedavg",
    toy: Toy = "layer",
    executor: str = "loop",
    workers: int = 1,
    *,
    wrap: dict[str, Any] | None = None,
    **settings: Any,
) -> Outcome:
    """Run a method on a toy; nothing is cached."""
    return finish(engine(parts(method, toy, **settings), executor, workers, **(wrap or {})))


@functools.lru_cache(maxsize=512)
def played(
    method: str = "fedavg", toy: str = "layer", executor: str = "loop", workers: int = 1, **settings: Any
) -> Outcome:
    """Run a method on a toy and cache the outcome, which several laws compare with."""
    return play(method, toy, executor, workers, **settings)


def copied(server: Server) -> Server:
    """Return the same values in new memory."""
    states = {n: State({k: v.clone() for k, v in s.items()}) for n, s in server.states.items()}
    return Server(server.round, server.model.clone(), states)


# ---- comparisons


def bits(value: Any) -> bytes:
    """Return the exact bytes of parameters, models with their statistics, tensors or states."""
    if value is None:
        return b"none"
    if isinstance(value, Params):
        return bits(value.flat) + (bits(value.statistics.flat) if isinstance(value, Model) else b"")
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().numpy().tobytes()
    if isinstance(value, ClientState):
        return bits(value.flat())
    if isinstance(value, Mapping):
        return b"".join(name.encode() + bits(part) for name, part in sorted(value.items()))
    return b"".join(bits(part) for part in value)


def differences(a: Outcome, b: Outcome) -> list[str]:
    """Name what differs in any bit: the server's model, its states, clients' personal models and states."""
    names = [name for name in ("model", "states") if bits(getattr(a, name)) != bits(getattr(b, name))]
    for name, left, right in (
        ("personal model", a.models, b.models),
        ("state", a.clients, b.clients),
    ):
        pairs = enumerate(zip(left, right, strict=True))
        names += [f"{name} of client {i}" for i, (x, y) in pairs if bits(x) != bits(y)]
    return names


def gap(a: Model, b: Model) -> float:
    """Compute max|a - b| / max|b| over parameters and statistics together."""
    parts = [(a.flat.double(), b.flat.double())]
    if len(a.statistics):
        parts.append((a.statistics.flat.double(), b.statistics.flat.double()))
    worst = max(float((x - y).abs().max()) for x, y in parts)
    return worst / max(float(y.abs().max()) for _, y in parts)
