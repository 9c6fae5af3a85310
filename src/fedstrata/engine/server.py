"""One server update: who takes part, what they are sent, what their replies do to the model. Pure; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from numpy.random import Generator
from torch import Tensor

from fedstrata.client.task import ClientTask
from fedstrata.common import random_streams
from fedstrata.common.errors import MethodError
from fedstrata.core.chain import PLAIN, Method
from fedstrata.core.layout import Layout, Names
from fedstrata.core.params import Model
from fedstrata.core.piece import Contribution, Piece, Reply, ServerContext
from fedstrata.core.plan import CohortSlot, Phase, Plan, QueryResult, Setup
from fedstrata.core.state import ClientState, State
from fedstrata.engine.aggregation import Aggregate, Fold, sums

BN = ("share", "local", "server", "trained", "batch")


@dataclass(frozen=True)
class Server:
    """What the server holds between rounds.

    Attributes:
        round: the next one, zero-based.
        model: parameters and norm statistics.
        states: of the pieces, by name.
    """

    round: int
    model: Model
    states: Mapping[str, State]

    @classmethod
    def start(cls, method: Method, setup: Setup) -> Server:
        """Return the server before round 0."""
        return cls(0, setup.model, {name: State(piece.init_server(setup)) for name, piece in method.named.items()})


@dataclass(frozen=True)
class Rules:
    """What is fixed for all rounds of a run: the method, the setup and the batch-norm policy (one of BN)."""

    method: Method
    setup: Setup
    bn: str

    @cached_property
    def base(self) -> Plan:
        """FedAvg's plan."""
        return fedavg_plan(self.setup.layout, self.bn)


@dataclass(frozen=True)
class RoundPlan:
    """A planned round.

    Attributes:
        plan: of the round; tasks: by cohort index; answers: to the pieces' queries, by piece.
    """

    plan: Plan
    tasks: tuple[ClientTask, ...]
    answers: Mapping[str, QueryResult]


# ---- contexts


def context(
    server: Server, rules: Rules, piece: Piece, stream: str, *keys: int, lr: float | None = None, **known: object
) -> ServerContext:
    """Return what a piece sees on the server.

    Args:
        server: before the round.
        rules: of the run.
        piece: that is called; plain FedAvg has no state.
        stream: purpose of its random numbers; ``keys`` follow the round.
        keys: further keys of the stream.
        lr: this round's local learning rate; by default the configured one.
        known: further fields of the context.
    """
    setup = rules.setup

    def rng() -> Generator:
        return random_streams.stream(setup.seed, stream, server.round, *keys)

    fields = known if "plan" in known else {"plan": rules.base, **known}
    return ServerContext(
        setup=setup,
        model=server.model,
        state=server.states.get(piece.name, State()),
        round=server.round,
        lr=setup.local.lr if lr is None else lr,
        _make_rng=rng,
        **fields,  # type: ignore[arg-type]
    )


# ---- before training


def fedavg_plan(layout: Layout, bn: str) -> Plan:
    """Return FedAvg's plan under a batch-norm policy.

    ``share``: running statistics are sent and averaged like weights. ``local``: each client keeps its statistics.
    ``server``: the server's initial ones never move. ``trained``: only those of trained layers are averaged.
    ``batch``: no client uses running statistics.
    """
    everything, statistics = layout.all, frozenset(layout.statistics.names)
    plan = Plan(train=layout.trainable, download=everything, upload=everything, aggregate=everything)
    if bn == "local":
        return plan.private(statistics)
    if bn in ("server", "batch"):
        return plan.without(statistics)
    return plan


def plan_round(
    server: Server,
    rules: Rules,
    lr: float,
    query: Callable[[str, Piece], QueryResult | None],
    stored: Callable[[int], ClientState | None],
) -> RoundPlan:
    """Run queries, sampling and planning, and form what each client is sent.

    Args:
        server: before the round.
        rules: of the run.
        lr: this round's local learning rate.
        query: has clients answer a piece's query.
        stored: returns a client's stored state.
    """
    answers = {n: a for n, p in rules.method.named.items() if (a := query(n, p)) is not None}
    plan = make_plan(server, rules, answers, lr=lr)
    seen: Counter[int] = Counter()
    tasks = []
    for index, client in enumerate(plan.cohort):
        sent, payload = send_to(server, rules, CohortSlot(index, client), plan, answers, lr=lr)
        state = stored(client)
        tasks.append(ClientTask(index, client, seen[client], server.round, plan.at(index), sent, payload, state, lr))
        seen[client] += 1
    return RoundPlan(plan, tuple(tasks), answers)


def rehearse(rules: Rules) -> None:
    """Refuse, before anything is trained or written, a first round that is invalid.

    A plan that depends on answers to a query is not known yet.

    Raises:
        MethodError: the plan trains nothing, averages what no client sends, or a piece refuses it.
    """
    if not rules.method.has("query"):
        make_plan(Server.start(rules.method, rules.setup), rules, {})


def make_plan(server: Server, rules: Rules, answers: Mapping[str, QueryResult], *, lr: float | None = None) -> Plan:
    """Return who takes part in a round and what they do, checked."""
    method, setup = rules.method, rules.setup
    owner = method.owner("sample")
    drawing = context(server, rules, owner, "sample", answers=answers.get(owner.name), lr=lr)
    cohort = [int(i) for i in owner.sample(setup.eligible, drawing)]
    strange = [i for i in cohort if i not in setup.eligible] if owner is not PLAIN else []
    if strange:
        raise MethodError(
            f"{owner.name} sampled {strange[:5]}, who may not take part (held out, or not registered); draw from"
            " `eligible`."
        )
    plan = planned(replace(rules.base, cohort=tuple(cohort)), server, rules, answers, lr=lr)
    check_plan(plan, setup.layout)
    method.check_plan(plan, setup.layout)
    return plan


def planned(
    plan: Plan, server: Server, rules: Rules, answers: Mapping[str, QueryResult], *, lr: float | None = None
) -> Plan:
    """Return the plan of all pieces on top of FedAvg's."""
    for name, piece in rules.method.planners.items():
        plan = piece.plan(plan, context(server, rules, piece, f"plan.{name}", answers=answers.get(name), lr=lr))
    return _only_trained_statistics(plan, rules.setup.layout) if rules.bn == "trained" else plan


def send_to(
    server: Server,
    rules: Rules,
    slot: CohortSlot,
    plan: Plan,
    answers: Mapping[str, QueryResult],
    *,
    lr: float | None = None,
) -> tuple[Model, dict[str, State]]:
    """Return what one client is sent: a model, and payloads by piece."""
    sent, payloads = server.model, {}
    for name, piece in rules.method.named.items():
        if not piece.overrides("send"):
            continue
        known = {"plan": plan, "slot": slot, "answers": answers.get(name)}
        ctx = context(server, rules, piece, f"send.{name}", slot.cohort_index, lr=lr, **known)
        start, payload = piece.send(sent, ctx)
        sent = start if isinstance(start, Model) else Model(start, server.model.statistics)
        if payload:
            payloads[name] = State(payload)
    return sent, payloads


def _only_trained_statistics(plan: Plan, layout: Layout) -> Plan:
    """Send and average the statistics of layer groups that are trained, for each client."""
    statistics = frozenset(layout.statistics.names)

    def trained(of: Plan) -> Names:
        groups = {layout.entries[n].group for n in of.trained}
        return frozenset(n for n in statistics if layout.entries[n].group in groups)

    changes = {i: {"upload": plan.at(i).upload - (statistics - trained(plan.at(i)))} for i in plan.per_client}
    plans = [plan.at(i) for i in range(len(plan.cohort))] if plan.per_client and plan.cohort else [plan]
    untouched = statistics - frozenset[str]().union(*(trained(one) for one in plans))
    plan = plan.change_each(changes)
    return replace(plan, upload=plan.upload - untouched, aggregate=plan.aggregate - untouched)


# ---- checks of a plan


def check_plan(plan: Plan, layout: Layout) -> None:
    """Refuse a plan that names unknown tensors, trains nothing, or averages what no client sends.

    Raises:
        MethodError: with the field and the tensors.
    """
    for field in ("train", "download", "upload", "aggregate", "client_local"):
        unknown = sorted(getattr(plan, field) - layout.all)
        if unknown:
            raise MethodError(
                f"the plan's {field} names {unknown[:3]}, which the model does not have; take names from layout.select."
            )
    local = sorted(layout.integers - (plan.download & plan.aggregate))
    if local:
        raise MethodError(
            f"{local[0]} sets what the network does in a round, so the server sends it to all clients, but this chain"
            " keeps it with them. Leave a piece out."
        )
    unsent = sorted(plan.aggregate - plan.upload)
    if unsent:
        raise MethodError(f"the plan averages {unsent[:3]}, which clients do not upload; upload includes aggregate.")
    if not plan.phases or any(not isinstance(p, Phase) for p in plan.phases):
        raise MethodError("the plan has no phase of local training.")
    for one in (plan, *(plan.at(index) for index in plan.per_client)):
        for phase in one.phases:
            names = one.train if phase.train is None else one.train & phase.train
            if not names & layout.parameters:
                raise MethodError(
                    f"phase {phase.name!r} of local training moves no parameter: the chain (or a model that is all"
                    " head) freezes what it would train. Leave one of its pieces out, or use another model."
                )
    if plan.cohort and plan.per_client:
        _check_single_clients(plan)


def _check_single_clients(plan: Plan) -> None:
    sent = frozenset[str]().union(*(plan.at(index).upload for index in range(len(plan.cohort))))
    unsent = sorted(plan.aggregate - sent)
    if unsent:
        raise MethodError(
            f"the plan averages {unsent[:3]}, which no client of the round uploads; have one upload them, or leave them"
            " out of aggregate."
        )
    beyond = sorted(sent - plan.upload)
    if beyond:
        raise MethodError(
            f"single clients upload {beyond[:3]}, which the plan's upload does not name; upload names everything that"
            " some client sends."
        )


# ---- after training


def server_context(
    server: Server, rules: Rules, turn: RoundPlan, piece: Piece, lr: float, **known: object
) -> ServerContext:
    """Return what a piece sees on the server after training."""
    answers = turn.answers.get(piece.name)
    return context(server, rules, piece, f"server.{piece.name}", lr=lr, plan=turn.plan, answers=answers, **known)


def weights_of(
    server: Server, rules: Rules, turn: RoundPlan, contributions: Sequence[Contribution], lr: float
) -> Tensor:
    """Return the weights of the contributors, [C] or [C, M]."""
    owner = rules.method.owner("weigh")
    ctx = server_context(server, rules, turn, owner, lr, contributions=contributions)
    return owner.weigh(contributions, ctx)


def fold_of(server: Server, rules: Rules, turn: RoundPlan, contributions: Sequence[Contribution], lr: float) -> Fold:
    """Return an empty fold over these contributors."""
    weights = weights_of(server, rules, turn, contributions, lr)
    return Fold(server.model, turn.plan, rules.setup.layout, weights)


def finish_round(
    server: Server,
    rules: Rules,
    turn: RoundPlan,
    contributions: Sequence[Contribution],
    replies: Sequence[Reply],
    folded: Aggregate | None = None,
) -> Server:
    """Return the server after its update from accepted replies.

    Args:
        server: before the round.
        rules: of the run.
        turn: the planned round.
        contributions: of the accepted replies, in cohort order.
        replies: themselves; empty where they are folded.
        folded: their sums, where they were folded as they arrived.
    """
    method, lr = rules.method, turn.tasks[0].lr
    states = dict(server.states)
    if folded is None:
        replies, sent = _screened(server, rules, turn, replies, lr)
        contributions = replies
        weights = weights_of(server, rules, turn, contributions, lr)
        known = {"contributions": contributions, "sent": sent, "weights": weights}
        for name, piece in method.named.items():
            if piece.overrides("observe"):
                ctx = server_context(server, rules, turn, piece, lr, **known)
                states[name] = State(piece.observe(replies, ctx))
        folded, states = _reduced(server, rules, turn, weights, replies, sent, states)
    step = folded.step
    for name, piece in reversed(list(method.named.items())):
        if not piece.overrides("merge"):
            continue
        payload = folded.payload_sums.get(name, State())
        known = {"contributions": contributions, "weights": folded.weights, "payload_sums": payload}
        ctx = server_context(server, rules, turn, piece, lr, **known)
        ctx = replace(ctx, state=states[name])
        step, state = piece.merge(step, ctx)
        states[name] = State(state)
    if step.flat.dim() != 1:
        raise MethodError(
            f"{method.owner('weigh').name} gives weights for {step.flat.shape[0]} models, and no piece's `merge` makes"
            " one move of their steps."
        )
    moved = server.model.params | (server.model.pick(step) + step)
    statistics = server.model.statistics | folded.statistics
    return Server(server.round + 1, Model(moved, statistics), states)


def _screened(
    server: Server, rules: Rules, turn: RoundPlan, replies: Sequence[Reply], lr: float
) -> tuple[Sequence[Reply], list[Model]]:
    """Return the replies that all pieces let pass, and what their clients were sent."""
    for piece in rules.method.pieces:
        if piece.overrides("screen"):
            sent = [turn.tasks[r.cohort_index].sent for r in replies]
            ctx = server_context(server, rules, turn, piece, lr, contributions=replies, sent=sent)
            replies = piece.screen(replies, ctx)
            if not replies:
                raise MethodError(f"{piece.name} let no reply of round {server.round + 1} pass; loosen its settings.")
    return replies, [turn.tasks[r.cohort_index].sent for r in replies]


def _reduced(
    server: Server,
    rules: Rules,
    turn: RoundPlan,
    weights: Tensor,
    replies: Sequence[Reply],
    sent: Sequence[Model],
    states: dict[str, State],
) -> tuple[Aggregate, dict[str, State]]:
    """Return the step by the chain's owner of ``reduce``, or by sums."""
    owner, layout = rules.method.owner("reduce"), rules.setup.layout
    if owner is PLAIN:
        return sums(server.model, turn.plan, layout, weights, replies, sent), states
    summed = sums(
        server.model,
        replace(turn.plan, aggregate=turn.plan.aggregate - layout.parameters),
        layout,
        weights,
        replies,
        sent,
    )
    known = {"contributions": replies, "sent": sent}
    ctx = replace(server_context(server, rules, turn, owner, turn.tasks[0].lr, **known), state=states[owner.name])
    step, state = owner.reduce(replies, weights, ctx)
    return replace(summed, step=step), {**states, owner.name: State(state)}


def empty_round(server: Server) -> Server:
    """Return the server after a round that did not move it."""
    return replace(server, round=server.round + 1)
