"""The model that a run serves, the models that clients use themselves, and their scores."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from fedstrata.client.task import ClientTask
from fedstrata.client.worker import Worker
from fedstrata.core.layout import Names
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Piece
from fedstrata.core.plan import CohortSlot, Plan, QueryResult
from fedstrata.core.state import ClientState, State
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.evaluation import Adapt, Evaluator, spread_of
from fedstrata.engine.ledger import Ledger
from fedstrata.engine.rows import Row
from fedstrata.engine.server import Server, context, send_to
from fedstrata.wire import messages
from fedstrata.wire.frame import MessageSize

SCORES = (
    "accuracy",
    "metrics",
    "validation",
    "personal",
    "personal_weighted",
    "personal_std",
    "personal_worst10",
    "shared_on_clients",
    "heldout",
    "heldout_own",
    "heldout_adapted",
)


class BetweenRounds(Protocol):
    """What serving reads of an engine; see :class:`fedstrata.engine.rounds.Engine`."""

    parts: RunComponents
    server: Server
    plan: Plan
    answers: Mapping[str, QueryResult]
    evaluator: Evaluator
    ledger: Ledger
    lowest: int | None
    by_client: dict[int, dict[str, float | None]] | None

    def stored(self, client: int) -> ClientState | None:
        """Return what a client stored, or None."""

    def query_all(self, *, count: bool) -> dict[str, QueryResult]:
        """Have clients answer all pieces' queries to the present model."""


class Serving:
    """Models of an engine between rounds, and their evaluation.

    Args:
        engine: whose server, plan and clients' states are read.
    """

    def __init__(self, engine: BetweenRounds) -> None:
        self.engine = engine
        self.parts = engine.parts

    # ---- models

    @property
    def local_norms(self) -> Names:
        """Tensors of norm layers that stay with clients."""
        plan, entries = self.engine.plan, self.parts.setup.layout.entries
        return frozenset(n for n in plan.client_local - plan.aggregate if entries[n].kind == "norm")

    @property
    def norm_source_client(self) -> int | None:
        """The client with whose norm layers the server's model is evaluated, where they stay with clients."""
        return self.engine.lowest if self.local_norms else None

    def model(self) -> Model:
        """Return the server's model; where norm layers stay with clients, with those of ``norm_source_client``."""
        model, norms = self.engine.server.model, self.local_norms
        if not norms or self.engine.lowest is None:
            return model
        stored = self.engine.stored(self.engine.lowest)
        assert stored is not None, "a client that has trained keeps its norms"
        local = {n: t for n, t in stored.tensors.items() if n in norms}
        weights = {n: t for n, t in local.items() if n in model}
        statistics = {n: t for n, t in local.items() if n in model.statistics}
        return Model(
            model.params | Params.of(weights) if weights else model.params,
            model.statistics | Params.of(statistics) if statistics else model.statistics,
        )

    def task_of(self, client: int, model: Model) -> ClientTask:
        """Return what a client forms its personal model from; where pieces send a client a model, that one."""
        engine, rules = self.engine, self.parts.rules
        t = engine.server.round
        payload: Mapping[str, State] = {}
        if rules.method.has("send"):
            slot = CohortSlot(-1, client)
            sent, payload = send_to(engine.server, rules, slot, engine.plan, engine.answers)
            model = model if sent is engine.server.model else sent
        lr = self.parts.lr(max(0, t - 1))
        return ClientTask(-1, client, 0, t, engine.plan.at(-1), model, payload, engine.stored(client), lr)

    def ready(self) -> None:
        """Have pieces' queries answered after a finished run was read back: models are formed from the answers."""
        engine = self.engine
        if self.parts.method.has("query") and not engine.answers:
            engine.answers = engine.query_all(count=False)

    def query(self, name: str, piece: Piece, *, count: bool) -> QueryResult | None:
        """Have clients answer a piece's query to the present model."""
        engine = self.engine
        query = piece.query(context(engine.server, self.parts.rules, piece, f"query.{name}"))
        if query is None:
            return None
        current = engine.server.model
        models = tuple(_with_statistics(current if m is None else m, current) for m in query.models)
        result = engine.evaluator.answer(replace(query, models=models), self.parts.setup.eligible)
        if count:
            size, times = messages.size_query(models, engine.server.round), len(result.clients)
            engine.ledger.queried(MessageSize(size.payload * times, size.framing * times))
        return result

    # ---- scores

    def evaluate(self, t: int, *, last: bool = False) -> Row:
        """Return scores after round ``t``; null where the round is not evaluated or the task has none.

        ``last``: the run ends with this round.
        """
        row: Row = dict.fromkeys(SCORES)
        if (t + 1) % self.parts.config.eval.every and not last:
            return row | {"evaluated": False, "eval_seconds": 0.0}
        start = time.perf_counter()
        model = self.model()
        self.ready()
        if self.parts.federation.test is not None:
            metrics = self.engine.evaluator.server(model)
            row |= {"accuracy": metrics.get("accuracy"), "metrics": metrics}
        row |= self._clients(model, last=last) | {"validation": self._validation(model)}
        # a regression that has diverged
        row = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        return row | {"evaluated": True, "eval_seconds": time.perf_counter() - start}

    def _clients(self, model: Model, *, last: bool) -> Row:
        """Score personal models on clients' test splits: unweighted over clients, held-out ones apart."""
        federation, evaluator, config = self.parts.federation, self.engine.evaluator, self.parts.config
        if federation.own_test is None:
            return {}
        out = frozenset(federation.heldout)
        new = config.new_clients
        adapt = Adapt(new.steps, new.lr or config.local.lr, new.groups) if last else None

        def score(worker: Worker, client: int) -> tuple[dict[str, float | None], int]:
            task = self.task_of(client, model)
            personal, shared, n = evaluator.client(worker, task, model)
            scores = {"personal": personal, "shared": shared}
            if client in out:
                before, after = evaluator.new_client(worker, task, adapt)
                scores |= {"received": before, "adapted": after}
            return scores, n

        scored = dict(enumerate(evaluator.spread(score, range(federation.clients))))
        scored = {i: s for i, s in scored.items() if s[1]}
        self.engine.by_client = {i: scores for i, (scores, _) in scored.items()}
        inside = [s for i, s in scored.items() if i not in out]
        outside = [scores for i, (scores, _) in scored.items() if i in out]
        row = spread_of([s["personal"] for s, _ in inside if s["personal"] is not None], [n for _, n in inside])
        return row | {
            "shared_on_clients": _mean([s["shared"] for s, _ in inside]),
            "heldout": _mean([s["received"] for s in outside]),
            "heldout_own": _mean([s["personal"] for s in outside]),
            "heldout_adapted": _mean([s["adapted"] for s in outside]),
        }

    def _validation(self, model: Model) -> float | None:
        evaluator, method = self.engine.evaluator, self.parts.method
        if not self.parts.federation.validation:
            return None
        personal = method.has("personal_model", "refine") or bool(self.engine.plan.client_local)

        def score(worker: Worker, client: int) -> tuple[float, int]:
            return evaluator.validation(worker, self.task_of(client, model), personal=personal, model=model)

        scores = evaluator.spread(score, self.parts.setup.eligible)
        total = sum(n for _, n in scores)
        return sum(s * n for s, n in scores) / total if total else None


def _with_statistics(p: Params, current: Model) -> Model:
    return p if isinstance(p, Model) else Model(p, current.statistics)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
