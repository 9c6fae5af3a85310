"""Run toys in memory, keep everything that a run leaves, and compare runs exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from fedstrata.backends.protocol import Executor
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.core.chain import Method
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Piece, Reply
from fedstrata.core.state import State
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.rounds import Engine
from fedstrata.engine.rows import Row
from fedstrata.engine.server import Server
from fedstrata.testing.toys import Toy, parts

Outcomes: TypeAlias = "list[Reply | ClientFailure]"
Change: TypeAlias = Callable[[Outcomes], Outcomes]
Order: TypeAlias = Callable[[list[ClientTask]], list[ClientTask]]


class Wrapped:
    """An executor whose works and replies pass through functions on their way, and are recorded."""

    def __init__(
        self, inner: Executor, change: Change = lambda replies: replies, order: Order = lambda works: works
    ) -> None:
        self.inner, self.change, self.order = inner, change, order
        self.name, self.workers = inner.name, inner.workers
        self.works: list[list[ClientTask]] = []
        self.replies: list[list[Reply]] = []

    def train(self, works: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """See :class:`Executor`."""
        replies = self.change(list(self.inner.train(self.order(list(works)))))
        self.works.append(list(works))
        self.replies.append(sorted((r for r in replies if isinstance(r, Reply)), key=lambda r: r.cohort_index))
        yield from replies

    def close(self) -> None:
        """See :class:`Executor`."""
        self.inner.close()


class Recorded(Engine):
    """An engine whose executor is recorded."""

    executor: Wrapped


def engine(made: RunComponents, executor: str = "loop", workers: int = 1, **wrap: Any) -> Recorded:
    """An engine whose executor is recorded; ``wrap`` is for :class:`Wrapped`."""
    built = Recorded(made, executor, workers)
    built.executor = Wrapped(built.executor, **wrap)
    return built


@dataclass
class Outcome:
    """What a run left.

    Attributes:
        model: the server's.
        models: the model that every client uses itself.
        states: of the pieces on the server, by piece.
        clients: every client's stored tensors, None where nothing is stored.
        rows: of the rounds.
    """

    model: Model
    models: list[Model]
    states: dict[str, State]
    clients: list[Any]
    rows: list[Row] = field(default_factory=list)


def outcome(run: Engine, rows: Sequence[Row] = ()) -> Outcome:
    """Return the server's model and states, and every client's model and state."""
    total = run.parts.federation.clients
    return Outcome(
        run.server.model,
        [client_model(run, i) for i in range(total)],
        dict(run.server.states),
        [run.states.get(i) for i in range(total)],
        list(rows),
    )


def client_model(run: Engine, client: int) -> Model:
    """Return the model that a client uses itself, as after the last round."""
    return run.evaluator.model(run.worker, run.serving.task_of(client, run.server.model)).clone()


def finish(run: Engine) -> Outcome:
    """All rounds that are left, then what they left behind."""
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
    """A whole run, not remembered."""
    return finish(engine(parts(method, toy, **settings), executor, workers, **(wrap or {})))


@functools.lru_cache(maxsize=512)
def played(
    method: str = "fedavg", toy: str = "layer", executor: str = "loop", workers: int = 1, **settings: Any
) -> Outcome:
    """A whole run, remembered; for runs that several laws compare with."""
    return play(method, toy, executor, workers, **settings)


def copied(server: Server) -> Server:
    """Return a server with copies of all values."""
    states = {n: State({k: v.clone() for k, v in s.items()}) for n, s in server.states.items()}
    return Server(server.round, server.model.clone(), states)


# ---- comparisons
# ----------------------------------------------------------------------------------------------------------------------------


def bits(value: Any) -> bytes:
    """The exact bytes of parameters (with statistics), tensors, rows or states."""
    if value is None:
        return b"none"
    if isinstance(value, Params):
        return bits(value.flat) + (bits(value.statistics.flat) if isinstance(value, Model) else b"")
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return b"".join(name.encode() + bits(part) for name, part in sorted(value.items()))
    return b"".join(bits(part) for part in value)


def same(a: Outcome, b: Outcome) -> list[str]:
    """Return where two outcomes differ in any bit: the server's model, its states, clients' models and states."""
    differing = [what for what in ("model", "states") if bits(getattr(a, what)) != bits(getattr(b, what))]
    differing += [
        f"model of client {i}" for i, (x, y) in enumerate(zip(a.models, b.models, strict=True)) if bits(x) != bits(y)
    ]
    return differing + [
        f"state of client {i}" for i, (x, y) in enumerate(zip(a.clients, b.clients, strict=True)) if bits(x) != bits(y)
    ]


def gap(a: Model, b: Model) -> float:
    """Return max|a - b| / max|b| over parameters and statistics together."""
    pairs = [(a.flat.double(), b.flat.double()), (a.statistics.flat.double(), b.statistics.flat.double())]
    pairs = [(x, y) for x, y in pairs if len(y)]
    return float(max((x - y).abs().max() for x, y in pairs) / max(y.abs().max() for _, y in pairs))
