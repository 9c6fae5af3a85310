"""Whole runs on toys, in memory, with everything that they leave; and exact comparisons of that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from fedstrata.backends.protocol import Executor
from fedstrata.client.update import ClientFailure, ClientTask
from fedstrata.core.chain import Method
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece, Reply
from fedstrata.core.state import State
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.rounds import Engine, Row
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
        self.replies.append(sorted((r for r in replies if isinstance(r, Reply)), key=lambda r: r.place))
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
        params: the server's model.
        models: every client's own model.
        slots: of the server, by piece.
        clients: every client's row, None where nothing is stored.
        rows: of the rounds.
    """

    params: Params
    models: list[Params]
    slots: dict[str, State]
    clients: list[Any]
    rows: list[Row] = field(default_factory=list)


def outcome(run: Engine, rows: Sequence[Row] = ()) -> Outcome:
    """The server's model and slots, every client's own model and row."""
    total = run.parts.federation.clients
    return Outcome(
        run.server.params,
        [own_model(run, i) for i in range(total)],
        dict(run.server.slots),
        [run.rows.get(i) for i in range(total)],
        list(rows),
    )


def own_model(run: Engine, client: int) -> Params:
    """The model that a client uses itself, as after the last round."""
    found = run.evaluator.model(run.kit, run.work_of(client, run.server.params))
    buffers = None if found.buffers is None else found.buffers.clone()
    return Params(found.flat.detach().clone(), found.spec, buffers=buffers)


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
    """The same values in memory of their own."""
    slots = {n: {k: v.clone() for k, v in s.items()} for n, s in server.slots.items()}
    return Server(server.round, server.params.clone(), slots)


# ---- comparisons
# ----------------------------------------------------------------------------------------------------------------------------


def bits(value: Any) -> bytes:
    """The exact bytes of parameters (with statistics), tensors, rows or states."""
    if value is None:
        return b"none"
    if isinstance(value, Params):
        return bits(value.flat) + (b"" if value.buffers is None else bits(value.buffers.flat))
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return b"".join(name.encode() + bits(part) for name, part in sorted(value.items()))
    return b"".join(bits(part) for part in value)


def same(a: Outcome, b: Outcome) -> list[str]:
    """Where two outcomes differ in any bit: the server's model, its slots, clients' models and rows."""
    found = [what for what in ("params", "slots") if bits(getattr(a, what)) != bits(getattr(b, what))]
    found += [
        f"model of client {i}" for i, (x, y) in enumerate(zip(a.models, b.models, strict=True)) if bits(x) != bits(y)
    ]
    return found + [
        f"row of client {i}" for i, (x, y) in enumerate(zip(a.clients, b.clients, strict=True)) if bits(x) != bits(y)
    ]


def gap(a: Params, b: Params) -> float:
    """max|a - b| / max|b| over parameters and statistics together."""
    worst = (a.flat.double() - b.flat.double()).abs().max()
    scale = b.flat.double().abs().max()
    if a.buffers is not None and b.buffers is not None and len(a.buffers):
        worst = torch.maximum(worst, (a.buffers.flat.double() - b.buffers.flat.double()).abs().max())
        scale = torch.maximum(scale, b.buffers.flat.double().abs().max())
    return float(worst / scale)
