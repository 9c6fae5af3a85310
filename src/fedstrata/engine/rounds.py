"""A run in memory: the round loop, without files. ``runs/run.py`` puts a folder under it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fedstrata.backends.selection import build as build_executor
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.client.update import ClientUpdate, reason_left_out
from fedstrata.common.errors import MethodError
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Contribution, Piece, Reply
from fedstrata.core.plan import Plan, QueryResult
from fedstrata.core.state import ClientState
from fedstrata.diagnostics.base import RoundSnapshot, defined
from fedstrata.engine.aggregation import Aggregate, Collector, Fold, foldable, without_tensors
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.evaluation import Evaluator
from fedstrata.engine.gate import Gate
from fedstrata.engine.ledger import Cost, Ledger
from fedstrata.engine.preflight import preflight_states
from fedstrata.engine.rows import RoundFacts, Row, round_row
from fedstrata.engine.server import RoundPlan, Server, empty_round, finish_round, fold_of, plan_round, planned
from fedstrata.engine.serving import Serving
from fedstrata.engine.stopping import StopRule
from fedstrata.storage import MappedRows, MemoryRows, RowStore
from fedstrata.wire.frame import MessageSize
from fedstrata.wire.gate import finite

OnExecutorChosen = Callable[[str, int, Mapping[str, float]], None]

OVERFLOW = (
    "the server's step from {} replies, each of them finite, is not finite; the round is left out. Lower local.lr or"
    " the method's rates."
)


@dataclass
class Collected:
    """What came back from the clients of a round.

    Attributes:
        accepted: replies that passed the gate, in cohort order; without update tensors where they were folded.
        failures: clients without a usable reply.
        costs: of all replies that arrived, by cohort index.
        folded: sums of the replies, where they were folded as they arrived.
    """

    accepted: list[Reply] = field(default_factory=list)
    failures: list[ClientFailure] = field(default_factory=list)
    costs: dict[int, Cost] = field(default_factory=dict)
    folded: Aggregate | None = None


@dataclass
class Engine:
    """A federation in training.

    Attributes:
        parts: what it is made of.
        executor, workers: who trains.
        server: between rounds.
        states: clients' stored states.
        seconds: spent in committed training rounds, evaluation apart.
        lowest: the lowest client that has a state.
        by_client: the last scores of single clients: "personal", "shared" (the server's model), "adapted" (held-out
            clients, after private steps).
        stopped_by: the setting that ended the run before its last round.
    """

    parts: RunComponents
    executor_name: str
    workers: int
    on_choice: OnExecutorChosen = lambda *_: None
    server: Server = field(init=False)
    states: RowStore = field(init=False)
    seconds: float = 0.0
    lowest: int | None = None
    by_client: dict[int, dict[str, float | None]] | None = None
    stopped_by: str | None = None

    def __post_init__(self) -> None:
        config, parts = self.parts.config, self.parts
        threads = config.local.threads
        torch.set_num_threads(threads)
        preflight_states(parts)
        self.executor = build_executor(self.executor_name, parts.make_worker, self.workers, threads, self.on_choice)
        self.worker = parts.make_worker()
        self.ledger = Ledger(self.worker)
        self.gate = Gate(self.ledger, parts.setup, config.max_update_norm)
        workers = [self.worker] + [parts.make_worker() for _ in range(min(self.workers, 4) - 1)]
        self.evaluator = Evaluator(workers, parts.federation, config.bn == "batch", threads)
        self.server = Server.start(parts.method, parts.setup)
        self.states = MappedRows() if config.client_state == "mapped" else MemoryRows()
        self.needed = config.needed(parts.setup.cohort)
        self.stop_rule = StopRule.of(config)
        self.answers: Mapping[str, QueryResult] = {}
        self.plan: Plan = planned(parts.rules.base, self.server, parts.rules, {})
        self.serving = Serving(self)

    # ---- the loop

    def rounds(self) -> Iterator[Row]:
        """Train round by round, each yielded once it is done; the only loop over rounds."""
        while not self.over:
            yield self.round()

    @property
    def over(self) -> bool:
        """Whether the run is at its end: after its last round, or stopped by a setting."""
        return self.stopped_by is not None or self.server.round >= self.parts.config.rounds

    def round(self) -> Row:
        """Run one round: plan, train, check, update, count, evaluate."""
        parts, t = self.parts, self.server.round
        start = time.perf_counter()
        before = self.ledger.total
        turn = plan_round(self.server, parts.rules, parts.lr(t), self._query, self.stored)
        got = self._train(turn)
        after, moved = self._update(turn, got)
        if moved:
            self._store_states(turn, got.accepted, after.model)
        was, self.server, self.plan, self.answers = self.server, after, turn.plan, turn.answers
        seconds = time.perf_counter() - start
        self.seconds += seconds
        self.ledger.round(turn.tasks, got.costs)
        self.stopped_by = self.stop_rule.spent(self.ledger.total, self.seconds)
        scores = {} if self.over else self.serving.evaluate(t)
        self.stopped_by = self.stopped_by or self.stop_rule.reached(scores)
        if self.over:
            self.answers = self.query_all(count=True)  # once more after the last round
            scores = self.serving.evaluate(t, last=True)
        measured = self._measure(was, turn, got.accepted) if parts.measures and scores["evaluated"] else {}
        facts = RoundFacts(t, turn, got.accepted, got.failures, self._spent(before), seconds, moved)
        return round_row(facts, parts.setup.layout) | scores | measured

    def close(self) -> None:
        """Release workers."""
        self.executor.close()

    def _spent(self, before: Cost) -> Cost:
        after = self.ledger.total

        def difference(a: MessageSize, b: MessageSize) -> MessageSize:
            return MessageSize(a.payload - b.payload, a.framing - b.framing)

        return Cost(difference(after.up, before.up), difference(after.down, before.down), after.flops - before.flops)

    # ---- replies

    def _train(self, turn: RoundPlan) -> Collected:
        """Train the cohort; every reply is checked before it touches the model."""
        parts, got = self.parts, Collected()
        tasks = {task.cohort_index: task for task in turn.tasks}
        expected = [
            Contribution(i, task.client, parts.setup.samples.size(task.client), self._steps(task))
            for i, task in tasks.items()
            if reason_left_out(self.worker, task) is None
        ]
        folds = foldable(parts.method, turn.plan) and not parts.measures

        def fold(contributions: Sequence[Contribution]) -> Fold:
            return fold_of(self.server, parts.rules, turn, contributions, turn.tasks[0].lr)

        collector = Collector(expected, tasks, fold if folds else None)
        light: dict[int, Reply] = {}
        left: Sequence[ClientTask] = turn.tasks
        while left:
            for answer in self.executor.train(left):
                self._take(answer, tasks, collector, got, light)
            left = collector.restart() if collector.spoiled else []
        if len(light) >= max(self.needed, 1):
            got.folded = collector.finish()
        replies = light if got.folded is not None else {**light, **collector.kept}
        got.accepted = [replies[i] for i in sorted(replies)]
        got.failures.sort(key=lambda f: f.cohort_index)
        return got

    def _take(
        self,
        answer: Reply | ClientFailure,
        tasks: Mapping[int, ClientTask],
        collector: Collector,
        got: Collected,
        light: dict[int, Reply],
    ) -> None:
        """Check one answer and hand it on."""
        index = answer.cohort_index
        if isinstance(answer, Reply) and index not in got.costs:
            got.costs[index] = self.ledger.of_reply(tasks[index], answer)
        failure = answer if isinstance(answer, ClientFailure) else self.gate.refusal(tasks[index], answer)
        if failure is not None:
            collector.fail(index)
            got.failures.append(failure)
            return
        assert isinstance(answer, Reply)
        collector.accept(answer)
        light[index] = without_tensors(answer)

    def _steps(self, task: ClientTask) -> int:
        setup, samples = self.parts.setup, self.parts.setup.samples.size(task.client)
        return sum(setup.local_steps(samples, epochs=p.epochs, steps=p.steps) for p in task.plan.phases)

    def _update(self, turn: RoundPlan, got: Collected) -> tuple[Server, bool]:
        """Return the server after the round, and whether the model was updated.

        With fewer replies than the quorum, or a step that is not finite, it keeps its values.
        """
        if len(got.accepted) < max(self.needed, 1):
            return empty_round(self.server), False
        after = finish_round(self.server, self.parts.rules, turn, got.accepted, got.accepted, got.folded)
        if sound(after):
            return after, True
        message = OVERFLOW.format(len(got.accepted))
        got.failures += [ClientFailure(r.cohort_index, r.client, "overflow", message) for r in got.accepted]
        got.accepted = []
        return empty_round(self.server), False

    # ---- clients' states

    def stored(self, client: int) -> ClientState | None:
        """Return what a client stored, or None."""
        flat = self.states.get(client)
        return None if flat is None else ClientState.from_flat(flat)

    def _store_states(self, turn: RoundPlan, replies: Sequence[Reply], model: Model) -> None:
        states: dict[int, ClientState] = {r.client: r.client_state for r in replies if r.client_state}
        if self.parts.method.has("settle"):
            tasks = {task.cohort_index: task for task in turn.tasks}
            for reply in replies:
                update = ClientUpdate(self.worker, tasks[reply.cohort_index].with_state(reply.client_state))
                states[reply.client] = update.settle(reply, model)
        if states:
            self.states.put(self.server.round, {client: state.flat() for client, state in states.items()})
            self.lowest = min(states) if self.lowest is None else min(self.lowest, *states)

    # ---- queries and measures

    def query_all(self, *, count: bool) -> dict[str, QueryResult]:
        """Have clients answer all pieces' queries to the present model."""
        results = {n: self._query(n, p, count=count) for n, p in self.parts.method.named.items()}
        return {n: result for n, result in results.items() if result is not None}

    def _query(self, name: str, piece: Piece, *, count: bool = True) -> QueryResult | None:
        if not piece.overrides("query"):
            return None
        return self.serving.query(name, piece, count=count)

    def _measure(self, was: Server, turn: RoundPlan, accepted: Sequence[Reply]) -> Row:
        """Return what measures give for the round; a bug in a user's measure ends the run, since it would mislead."""
        snapshot = RoundSnapshot(
            was.round,
            self.parts.setup.layout,
            was.model,
            self.server.model,
            accepted,
            [turn.tasks[r.cohort_index].sent for r in accepted],
            self.serving.model(),
            self.server.states,
            self.evaluator.features,
            self.evaluator.loss,
        )
        results = {}
        for name, measure in self.parts.measures.items():
            try:
                results[name] = defined(measure.measure(snapshot))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise MethodError(
                    f"the measure {name} failed in round {was.round + 1}: {reason}. Mend it, or leave it out."
                ) from error
        return {"measures": results}


def sound(server: Server) -> bool:
    """Say whether the model, its statistics and the models that pieces keep are finite."""
    models = [value for state in server.states.values() for value in state.values() if isinstance(value, Params)]
    states = [m.flat for m in models] + [m.statistics.flat for m in models if isinstance(m, Model)]
    return all(finite(tensor) for tensor in (server.model.flat, server.model.statistics.flat, *states))
