"""A run in memory: the round loop, without files. ``run.py`` puts a folder under it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstrata.backends.selection import build as build_executor
from fedstrata.client.update import ClientFailure, ClientTask, ClientUpdate
from fedstrata.client.worker import Worker
from fedstrata.common.errors import MethodError
from fedstrata.core.layout import Layout
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece, Reply
from fedstrata.core.plan import CohortSlot, Plan, QueryResult
from fedstrata.core.state import State, flatten_state, pack
from fedstrata.diagnostics.base import RoundSnapshot, defined
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.evaluation import Adapt, Evaluator, spread_of
from fedstrata.engine.ledger import Cost, Ledger
from fedstrata.engine.server import RoundPlan, Server, base_plan, finish_round, plan_round, send_to
from fedstrata.engine.stopping import StopRule
from fedstrata.storage import MappedRows, MemoryRows, RowStore, preflight
from fedstrata.wire import messages
from fedstrata.wire.gate import Bounds, finite, inspect

Row = dict[str, Any]
OnExecutorChosen = Callable[[str, int, Mapping[str, float]], None]


@dataclass
class Engine:
    """A federation in training.

    Attributes:
        parts: what it is made of.
        executor, workers: who trains.
        server: between rounds.
        rows: clients' rows.
        seconds: spent in committed training rounds, evaluation apart.
        lowest: the lowest client that has a row.
        by_client: the last scores of single clients: "personal" (own model), "shared" (the server's), "adapted"
            (held-out ones, after private steps).
        stopped_by: the setting that ended the run before its last round.
    """

    parts: RunComponents
    executor_name: str
    workers: int
    on_choice: OnExecutorChosen = lambda *_: None
    server: Server = field(init=False)
    rows: RowStore = field(init=False)
    seconds: float = 0.0
    lowest: int | None = None
    by_client: dict[int, dict[str, float | None]] | None = None
    stopped_by: str | None = None

    def __post_init__(self) -> None:
        config, parts = self.parts.config, self.parts
        threads = config.local.threads
        torch.set_num_threads(threads)
        preflight_rows(parts)
        self.executor = build_executor(self.executor_name, parts.make, self.workers, threads, self.on_choice)
        self.kit = parts.make()
        self.ledger = Ledger(self.kit)
        kits = [self.kit] + [parts.make() for _ in range(min(self.workers, 4) - 1)]
        self.evaluator = Evaluator(kits, parts.federation, config.bn == "batch", threads)
        self.server = Server.start(parts.method, parts.setup)
        self.rows = MappedRows() if config.rows == "mapped" else MemoryRows()
        self.needed = config.needed(parts.setup.cohort)
        self.ending = StopRule.of(config)
        self.measures = parts.measures
        self.answers: Mapping[str, QueryResult] = {}
        self.plan: Plan = self.plan_now()

    # ---- the loop
    # -----------------------------------------------------------------------------------------------------------------------

    def rounds(self) -> Iterator[Row]:
        """Train round by round, each yielded once it is done; the only loop over rounds."""
        while not self.over:
            yield self.round()

    @property
    def over(self) -> bool:
        """Whether the run is at its end: after its last round, or stopped by a setting."""
        return self.stopped_by is not None or self.server.round >= self.parts.config.rounds

    def round(self) -> Row:
        """One round: plan, train, check, update, bill, evaluate."""
        parts, t = self.parts, self.server.round
        start = time.perf_counter()
        before = self.ledger.total
        turn = plan_round(
            self.server, parts.method, parts.setup, parts.config.bn, parts.lr(t), self._ask, self.rows.get
        )
        answers = sorted(self.executor.train(turn.works), key=lambda a: a.place)
        accepted, refused = self._inspect(turn, answers)
        after, moved = finish_round(self.server, parts.method, parts.setup, turn, accepted, self.needed)
        if moved and not sound(after):
            refused += [ClientFailure(r.place, r.client, "overflow", OVERFLOW.format(len(accepted))) for r in accepted]
            after, moved, accepted = replace(self.server, round=after.round), False, []
        if moved:
            self._keep_rows(turn, accepted, after.params)
        was, self.server, self.plan, self.answers = self.server, after, turn.plan, turn.answers
        seconds = time.perf_counter() - start
        self.seconds += seconds
        self.ledger.round(turn.works, [a for a in answers if isinstance(a, Reply)])
        self.stopped_by = self.ending.spent(self.ledger.total, self.seconds)
        scores = {} if self.over else self.evaluate(t)
        self.stopped_by = self.stopped_by or self.ending.reached(scores)
        if self.over:
            self.answers = self._ask_all(bill=True)  # once more after the last round
            scores = self.evaluate(t, last=True)
        looks = self._look(was, turn, accepted) if self.measures and scores["evaluated"] else {}
        return self._row(turn, accepted, refused, self._spent(before), seconds, moved=moved) | scores | looks

    def close(self) -> None:
        """Release workers."""
        self.executor.close()

    def _spent(self, before: Cost) -> Cost:
        after = self.ledger.total
        up = type(after.up)(after.up.payload - before.up.payload, after.up.framing - before.up.framing)
        down = type(after.down)(after.down.payload - before.down.payload, after.down.framing - before.down.framing)
        return Cost(up, down, after.flops - before.flops)

    def _ask_all(self, *, bill: bool) -> dict[str, QueryResult]:
        """All pieces' questions to the present model."""
        found = {n: self._ask(n, p, self.server.slots[n], bill=bill) for n, p in self.parts.method.named.items()}
        return {n: a for n, a in found.items() if a is not None}

    def _ask(self, name: str, piece: Piece, slot: State, *, bill: bool = True) -> QueryResult | None:
        question = piece.ask(slot, self.server.round, self.parts.setup)
        if question is None:
            return None
        current = self.server.params
        models = tuple(current if m is None else m.with_statistics(current) for m in question.models)
        answers = self.evaluator.answer(replace(question, models=models), self.parts.setup.eligible)
        if bill:
            size = messages.weigh_ask(models, self.server.round)
            self.ledger.asked(type(size)(size.payload * len(answers.clients), size.framing * len(answers.clients)))
        return answers

    def _inspect(
        self, turn: RoundPlan, answers: Sequence[Reply | ClientFailure]
    ) -> tuple[list[Reply], list[ClientFailure]]:
        """The gate: every reply is checked before it touches the model."""
        accepted, refused = [], []
        for answer in answers:
            bad = answer if isinstance(answer, ClientFailure) else self._refusal(turn, answer)
            if bad is None:
                assert isinstance(answer, Reply)
                accepted.append(answer)
            else:
                refused.append(bad)
        return accepted, refused

    def _refusal(self, turn: RoundPlan, reply: Reply) -> ClientFailure | None:
        limit = Bounds(self.parts.setup.samples.size(reply.client), self.parts.config.gate.norm)
        work = turn.works[reply.place]
        mail, expected = dict(self.ledger.mail(work)), self._expected(work.plan)
        if (reply.delta.spec, reply.statistics.spec) != expected:
            found = inspect(
                messages.contents(reply), reply.samples, messages.up_shapes(work.plan, self.server.params) | mail, limit
            )
        else:  # the names are right: two vectors are looked at instead of many tensors
            tensors = {"delta": reply.delta.flat, "statistics": reply.statistics.flat}
            sent = {n: t for n, t in messages.contents(reply).items() if n.startswith("mail/")} if reply.mail else {}
            shapes = {
                n: ((spec.total,), self.server.params.flat.dtype) for n, spec in zip(tensors, expected, strict=True)
            }
            found = inspect(tensors | sent, reply.samples, shapes | mail, limit)
        return None if found is None else ClientFailure(reply.place, reply.client, found.code, found.message)

    def _expected(self, plan: Plan) -> tuple[Any, Any]:
        layout = self.parts.setup.layout
        return layout.spec.only(plan.up), layout.statistics.only(plan.up)

    def _keep_rows(self, turn: RoundPlan, replies: Sequence[Reply], params: Params) -> None:
        method = self.parts.method
        rows = {r.client: dict(r.row) for r in replies if r.row}
        if method.has("settle"):
            for reply in replies:
                rows[reply.client] = settle(self.kit, turn.works[reply.place], reply, params)
        if rows:
            self.rows.put(self.server.round, rows)
            self.lowest = min(rows) if self.lowest is None else min(self.lowest, *rows)

    # ---- what a round tells
    # -------------------------------------------------------------------------------------------------------------

    def _row(
        self,
        turn: RoundPlan,
        accepted: Sequence[Reply],
        refused: Sequence[ClientFailure],
        bill: Cost,
        seconds: float,
        *,
        moved: bool,
    ) -> Row:
        losses = [(r.loss, r.samples) for r in accepted if math.isfinite(r.loss)]
        weight = sum(n for _, n in losses)
        return {
            "round": self.server.round - 1,
            "cohort": [w.client for w in turn.works],
            "replies": len(accepted),
            "moved": moved,
            "refused": [[f.client, f.code, f.message] for f in refused],
            "loss": sum(x * n for x, n in losses) / weight if weight else None,
            "bytes_up": bill.up.payload,
            "bytes_down": bill.down.payload,
            "framing_up": bill.up.framing,
            "framing_down": bill.down.framing,
            "flops": bill.flops,
            "seconds": seconds,
            "trained": trained(turn, self.parts.setup.layout),
            "front": tally(r.front for r in accepted) or None,
        }

    def _look(self, was: Server, turn: RoundPlan, accepted: Sequence[Reply]) -> Row:
        """What measures say of the round.

        A bug in one of a user's own ends the run, as a measure that lies would be worse.
        """
        seen = RoundSnapshot(
            was.round,
            self.parts.setup.layout,
            was.params,
            self.server.params,
            accepted,
            [turn.works[r.place].sent for r in accepted],
            self.served(),
            self.server.slots,
            self.evaluator.features,
            self.evaluator.loss,
        )
        found = {}
        for name, measure in self.measures.items():
            try:
                found[name] = defined(measure.measure(seen))
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                raise MethodError(
                    f"the measure {name} failed in round {was.round + 1}: {said}. Mend it, or leave it out."
                ) from error
        return {"measures": found}

    def evaluate(self, t: int, *, last: bool = False) -> Row:
        """Scores after round ``t``: null values where this round is not evaluated or the task has none.

        ``last``: the run ends with it.
        """
        config = self.parts.config
        names = (
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
        row: Row = dict.fromkeys(names)
        if (t + 1) % config.eval.every and not last:
            return row | {"evaluated": False, "eval_seconds": 0.0}
        start = time.perf_counter()
        params = self.served()
        self.ready()
        if self.parts.federation.test is not None:
            metrics = self.evaluator.server(params)
            row |= {"accuracy": metrics.get("accuracy"), "metrics": metrics}
        row |= self._clients(params, last=last) | {"validation": self._validation(params)}
        row = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
        }  # of a regression that has diverged
        return row | {"evaluated": True, "eval_seconds": time.perf_counter() - start}

    def ready(self) -> None:
        """After a finished run was read back: have pieces' questions answered, from which models are formed."""
        if self.parts.method.has("ask") and not self.answers:
            self.answers = self._ask_all(bill=False)

    def served(self) -> Params:
        """The server's model.

        Where norm layers stay with clients, with those of the lowest client that has trained (``norms_of``).
        """
        params, layout = self.server.params, self.parts.setup.layout
        stays = frozenset(n for n in self.plan.keep - self.plan.average if layout.entries[n].kind == "norm")
        if not stays or self.lowest is None:
            return params
        row = self.rows.get(self.lowest)
        assert row is not None, "a client that has trained keeps its norms"
        assert params.buffers is not None
        own = {n: row[f"kept/{n}"] for n in stays if f"kept/{n}" in row}
        moved = (
            params | Params.of({n: t for n, t in own.items() if n in params})
            if any(n in params for n in own)
            else params
        )
        statistics = {n: t for n, t in own.items() if n in params.buffers}
        return Params(
            moved.flat, moved.spec, buffers=params.buffers | Params.of(statistics) if statistics else params.buffers
        )

    @property
    def norms_of(self) -> int | None:
        """Whose norm layers the server's model is evaluated with, where they stay with clients."""
        stays = any(self.parts.setup.layout.entries[n].kind == "norm" for n in self.plan.keep - self.plan.average)
        return self.lowest if stays else None

    def work_of(self, client: int, params: Params) -> ClientTask:
        """What a client forms its own model from; where pieces send single clients something of their own, that."""
        t, method = self.server.round, self.parts.method
        extras: Mapping[str, State] = {}
        if method.has("send"):
            seat = CohortSlot(-1, client, t, self.plan.cohort)
            sent, extras = send_to(self.server, method, self.parts.setup, seat, self.answers)
            params = params if sent is self.server.params else sent
        return ClientTask(
            -1, client, 0, t, self.plan.at(-1), params, extras, self.rows.get(client), self.parts.lr(max(0, t - 1))
        )

    def _clients(self, params: Params, *, last: bool) -> Row:
        """Own models on own test splits: unweighted over clients, held-out ones apart."""
        if self.parts.federation.own_test is None:
            return {}
        out = frozenset(self.parts.federation.heldout)
        c = self.parts.config
        adapt = Adapt(c.unseen.steps, c.unseen.lr or c.local.lr, c.unseen.groups) if last else None

        def score(kit: Worker, client: int) -> tuple[dict[str, float | None], int]:
            work = self.work_of(client, params)
            own, shared, n = self.evaluator.client(kit, work, params)
            found = {"personal": own, "shared": shared}
            if client in out:
                before, after = self.evaluator.unseen(kit, work, adapt)
                found |= {"received": before, "adapted": after}
            return found, n

        scored = dict(enumerate(self.evaluator.spread(score, range(self.parts.federation.clients))))
        scored = {i: f for i, f in scored.items() if f[1]}
        self.by_client = {i: f for i, (f, _) in scored.items()}
        inside = [f for i, f in scored.items() if i not in out]
        outside = [f for i, (f, _) in scored.items() if i in out]
        row = spread_of([f["personal"] for f, _ in inside if f["personal"] is not None], [n for _, n in inside])
        row["shared_on_clients"] = _mean([f["shared"] for f, _ in inside])
        return (
            row
            | {"heldout": _mean([f["received"] for f in outside])}
            | {
                "heldout_own": _mean([f["personal"] for f in outside]),
                "heldout_adapted": _mean([f["adapted"] for f in outside]),
            }
        )

    def _validation(self, params: Params) -> float | None:
        if not self.parts.federation.validation:
            return None
        personal = self.parts.method.has("personalise") or bool(self.plan.keep)

        def score(kit: Worker, client: int) -> tuple[float, int]:
            return self.evaluator.validation(kit, self.work_of(client, params), personal=personal, params=params)

        found = self.evaluator.spread(score, self.parts.setup.eligible)
        total = sum(n for _, n in found)
        return sum(s * n for s, n in found) / total if total else None

    def plan_now(self) -> Plan:
        """The plan of the coming round without answers to its questions: what a client forms its own model by before
        it.
        """
        parts = self.parts
        plan = base_plan(parts.setup.layout, parts.config.bn)
        for name, piece in parts.method.named.items():
            plan = piece.plan(plan, self.server.slots[name], None, self.server.round, parts.setup)
        return plan


def trained(turn: RoundPlan, layout: Layout) -> dict[str, int] | None:
    """Layer groups with how many clients of a round were to move them, in the layout's order.

    None where all were to move all.
    """
    owns = [work.plan.moved for work in turn.works]
    if all(own >= layout.parameters - layout.settings for own in owns):
        return None
    return {
        name: count
        for name, group in layout.groups.items()
        if (count := sum(not own.isdisjoint(group.names) for own in owns))
    }


def tally(told: Iterable[Mapping[str, int] | None]) -> dict[str, int]:
    """Sums of counts by what they count, in the order of the first."""
    total: dict[str, int] = {}
    for counts in told:
        for said, count in (counts or {}).items():
            total[said] = total.get(said, 0) + count
    return total


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


OVERFLOW = (
    "the server's step from {} replies, each of them finite, is not finite; the round is left out. Lower local.lr or"
    " the method's own rates."
)


def sound(server: Server) -> bool:
    """Whether the model, its statistics and the models that pieces keep are finite."""
    assert server.params.buffers is not None
    kept = [
        value.flat
        for slot in server.slots.values()
        for value in flatten_state(slot).values()
        if isinstance(value, Params)
    ]
    return all(finite(tensor) for tensor in (server.params.flat, server.params.buffers.flat, *kept))


def preflight_rows(parts: RunComponents) -> None:
    """Refuse, before round 0, rows that cannot fit: as many as can come to exist, times what one weighs."""
    setup, plan = (
        parts.setup,
        replace(base_plan(parts.setup.layout, parts.config.bn), cohort=(parts.setup.eligible[0],)),
    )
    slots = {n: p.init(setup) for n, p in parts.method.named.items()}
    for name, piece in parts.method.named.items():
        if not piece.overrides("ask"):  # a plan that hangs on answers is not known yet
            plan = piece.plan(plan, slots[name], None, 0, setup)
    states = {n: p.init_client(setup) for n, p in parts.method.named.items()}
    weight = sum(t.numel() * t.element_size() for t in pack(states, {}).values())
    weight += sum(4 * setup.layout.entries[n].shape.numel() for n in plan.at(0).keep)
    if weight:
        most = min(len(setup.eligible), setup.cohort * setup.rounds)
        preflight(most, weight, Path(parts.config.out) if parts.config.rows == "mapped" else None)


def settle(kit: Worker, work: ClientTask, reply: Reply, params: Params) -> dict[str, Tensor]:
    """A participant's row after the merge of the same round."""
    session = ClientUpdate(kit, replace(work, row=reply.row))
    row = dict(reply.row)
    for name, piece in kit.method.named.items():
        if piece.overrides("settle"):
            state = piece.settle(session.rows[name], params, session.at(name))
            row |= {f"{name}/{k}": v.flat if isinstance(v, Params) else v for k, v in state.items()}
    return row
