"""One server update: who takes part, what they are sent, what their replies do to the model. Pure; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedstrata.client.update import ClientFailure, ClientTask
from fedstrata.common import random_streams
from fedstrata.common.errors import MethodError
from fedstrata.core.chain import PLAIN, Method, name_of
from fedstrata.core.layout import Layout, Names
from fedstrata.core.params import Params, mean_over_senders
from fedstrata.core.piece import Piece, Reply, ServerContext
from fedstrata.core.plan import CohortSlot, Phase, Plan, QueryResult, Setup
from fedstrata.core.state import State

BN = ("share", "local", "server", "trained", "batch")


@dataclass(frozen=True)
class Server:
    """What the server holds between rounds.

    Attributes:
        round: the next one, zero-based.
        params: the model, with its statistics.
        slots: of the pieces, by name.
    """

    round: int
    params: Params
    slots: Mapping[str, State]

    @classmethod
    def start(cls, method: Method, setup: Setup) -> Server:
        """Before round 0."""
        return cls(0, setup.params, {name: piece.init(setup) for name, piece in method.named.items()})


@dataclass(frozen=True)
class RoundPlan:
    """A round that was planned: who does what.

    Attributes:
        plan: of the round; works: by place; answers: by piece.
    """

    plan: Plan
    works: tuple[ClientTask, ...]
    answers: Mapping[str, QueryResult]


def base_plan(layout: Layout, bn: str) -> Plan:
    """FedAvg's plan under a batch-norm policy.

    ``share``: running statistics are sent and averaged like weights. ``local``: each client keeps its own. ``server``:
        the server's initial
    ones are never moved. ``trained``: only those of trained layers are averaged. ``batch``: nobody uses running
    statistics.
    """
    everything, statistics = layout.all, frozenset(layout.statistics.names)
    plan = Plan(train=layout.parameters - layout.settings, down=everything, up=everything, average=everything)
    if bn == "local":
        return plan.private(statistics)
    if bn in ("server", "batch"):
        return plan.without(statistics)
    return plan


def plan_round(
    server: Server,
    method: Method,
    setup: Setup,
    bn: str,
    lr: float,
    ask: Callable[[str, Piece, State], QueryResult | None],
    row: Callable[[int], Mapping[str, Tensor] | None],
) -> RoundPlan:
    """Questions, sampling, plan and what each place is sent.

    Args:
        server: before the round.
        method: of the run.
        setup: of the run.
        bn: the batch-norm policy, one of BN.
        lr: this round's local learning rate.
        ask: has clients answer a piece's question.
        row: a client's stored row.
    """
    answers = {n: a for n, p in method.named.items() if (a := ask(n, p, server.slots[n])) is not None}
    plan = _plan(server, method, setup, bn, answers)
    seen: Counter[int] = Counter()
    works = []
    for place, client in enumerate(plan.cohort):
        sent, extras = send_to(server, method, setup, CohortSlot(place, client, server.round, plan.cohort), answers)
        works.append(
            ClientTask(place, client, seen[client], server.round, plan.at(place), sent, extras, row(client), lr)
        )
        seen[client] += 1
    return RoundPlan(plan, tuple(works), answers)


def rehearse(method: Method, setup: Setup, bn: str) -> None:
    """Refuse, before anything is trained or written, a first round that cannot be meant; a plan that hangs on answers
    is not known yet.

    Raises:
        MethodError: the plan trains nothing, averages what nobody sends, or trains in phases where a piece counts the
            steps of one.
    """
    if not method.has("ask"):
        _plan(Server.start(method, setup), method, setup, bn, {})


def _plan(server: Server, method: Method, setup: Setup, bn: str, answers: Mapping[str, QueryResult]) -> Plan:
    """Who takes part in a round and what they do, checked."""
    t = server.round
    owner = method.owner("sample")
    name = name_of(owner)
    rng = random_streams.stream(setup.seed, "sample", t)
    cohort = [
        int(i) for i in owner.sample(setup.eligible, server.slots.get(name, {}), answers.get(name), rng, setup.cohort)
    ]
    strange = [i for i in cohort if i not in setup.eligible] if owner is not PLAIN else []
    if strange:
        raise MethodError(
            f"{name_of(owner)} sampled {strange[:5]}, who may not take part (held out, or not registered); draw from"
            " `eligible`."
        )
    plan = replace(base_plan(setup.layout, bn), cohort=tuple(cohort))
    for name, piece in method.named.items():
        plan = piece.plan(plan, server.slots[name], answers.get(name), t, setup)
    if bn == "trained":
        plan = _statistics_of_trained(plan, setup.layout)
    _check_plan(plan, setup.layout)
    _check_phases(plan, method)
    _check_reads(plan, method, setup.layout)
    _check_places(plan)
    return plan


def send_to(
    server: Server, method: Method, setup: Setup, seat: CohortSlot, answers: Mapping[str, QueryResult]
) -> tuple[Params, dict[str, State]]:
    """What one seat is sent: parameters, and extras by piece."""
    sent, extras = server.params, {}
    for name, piece in method.named.items():
        rng = random_streams.stream(setup.seed, f"send.{name}", server.round, seat.place)
        sent, extra = piece.send(sent, server.slots[name], replace(seat, answers=answers.get(name)), rng, setup)
        if extra:
            extras[name] = extra
    return sent.with_statistics(server.params), extras


def _statistics_of_trained(plan: Plan, layout: Layout) -> Plan:
    statistics = frozenset(layout.statistics.names)

    def moved(own: Plan) -> Names:
        """Statistics of the groups that a place trains."""
        groups = {layout.entries[n].group for n in own.moved}
        return frozenset(n for n in statistics if layout.entries[n].group in groups)

    places = {}
    for place, changes in plan.places.items():
        own = plan.at(place)
        places[place] = {**changes, "up": own.up - (statistics - moved(own))}
    owns = [plan.at(place) for place in range(len(plan.cohort))] if plan.places and plan.cohort else [plan]
    still = statistics - frozenset[str]().union(*(moved(own) for own in owns))
    return replace(plan, up=plan.up - still, average=plan.average - still, places=places)


def _check_plan(plan: Plan, layout: Layout) -> None:
    for field in ("train", "down", "up", "average", "keep"):
        unknown = sorted(getattr(plan, field) - layout.all)
        if unknown:
            raise MethodError(
                f"the plan's {field} names {unknown[:3]}, which the model does not have; take names from layout.select."
            )
    kept = sorted(layout.settings - (plan.down & plan.average))
    if kept:
        raise MethodError(
            f"{kept[0]} says what the network does in a round, so all clients are sent it, and this chain keeps it with"
            " them. Leave a piece out."
        )
    silent = sorted(plan.average - plan.up)
    if silent:
        raise MethodError(
            f"the plan averages {silent[:3]} without having them sent up; what is averaged is part of up."
        )
    if not plan.phases or any(not isinstance(p, Phase) for p in plan.phases):
        raise MethodError("the plan has no phase of local training.")
    for own in (plan, *(plan.at(place) for place in plan.places)):
        for phase in own.phases:
            names = own.train if phase.train is None else own.train & phase.train
            if not names & layout.parameters:
                raise MethodError(
                    f"phase {phase.name!r} of local training moves no parameter: the chain (or a model that is all"
                    " head) freezes what it would train. Leave one of its pieces out, or use another model."
                )


def _check_phases(plan: Plan, method: Method) -> None:
    divides = [name for name, piece in method.named.items() if piece.one_phase]
    if divides and any(len(own.phases) > 1 for own in (plan, *(plan.at(place) for place in plan.places))):
        raise MethodError(
            f"{divides[0]} divides by one number of local steps; this chain trains in phases. Leave {divides[0]}, or"
            " the piece with the phases, out."
        )


def _check_reads(plan: Plan, method: Method, layout: Layout) -> None:
    for name, piece in method.named.items():
        hidden = sorted(layout.select(piece.reads) & plan.keep - plan.up) if piece.reads else []
        if hidden:
            raise MethodError(
                f"{name}'s server reads {hidden[0]} in every reply, and this chain keeps it with each client. Leave a"
                " piece out."
            )


def _check_places(plan: Plan) -> None:
    if not plan.cohort or not plan.places:
        return
    sent = frozenset[str]().union(*(plan.at(place).up for place in range(len(plan.cohort))))
    silent = sorted(plan.average - sent)
    if silent:
        raise MethodError(
            f"the plan averages {silent[:3]}, which no client of the round sends; let one send them, or leave them out"
            " of average."
        )
    beyond = sorted(sent - plan.up)
    if beyond:
        raise MethodError(
            f"single clients send {beyond[:3]}, which the plan's up does not name; up names all that some client sends."
        )


def finish_round(
    server: Server, method: Method, setup: Setup, turn: RoundPlan, replies: Sequence[Reply], quorum: int
) -> tuple[Server, bool]:
    """The server's update from accepted replies, in cohort order.

    Returns:
        the server after the round, and whether the model was updated: with fewer replies than ``quorum`` (or none) it
        stays as it was.
    """
    after = replace(server, round=server.round + 1)
    if len(replies) < max(quorum, 1):
        return after, False
    sent = [turn.works[r.place].sent for r in replies]

    def view(name: str) -> ServerContext:
        rng = random_streams.stream(setup.seed, f"server.{name}", server.round)
        return ServerContext(
            setup, server.params, turn.plan, server.round, turn.works[0].lr, replies, sent, turn.answers.get(name), rng
        )

    slots = dict(server.slots)
    weigher, reducer = method.owner("weigh"), method.owner("reduce")
    weights = weigher.weigh(replies, slots.get(name_of(weigher), {}), view(name_of(weigher)))
    step, slot = reducer.reduce(replies, weights, slots.get(name_of(reducer), {}), view(name_of(reducer)))
    if reducer is not PLAIN:
        slots[name_of(reducer)] = slot
    for name, piece in reversed(list(method.named.items())):
        step, slots[name] = piece.merge(step, slots[name], view(name))
    moved = server.params | (server.params.pick(step) + step)
    buffers = _average_statistics(server.params, turn.plan, setup.layout, replies, weights)
    return Server(after.round, Params(moved.flat, moved.spec, buffers=buffers), slots), True


def _average_statistics(
    params: Params, plan: Plan, layout: Layout, replies: Sequence[Reply], weights: Tensor
) -> Params:
    """Norm statistics are averaged with the weights of the clients that sent them, scaled to sum to one."""
    assert params.buffers is not None
    spec = params.buffers.spec.only(plan.average & frozenset(layout.statistics.names))
    if not spec.names:
        return params.buffers
    shares = weights.sum(-1) if weights.dim() > 1 else weights
    shares = shares / shares.sum()
    if any(not spec.index.keys() <= r.statistics.spec.index.keys() for r in replies):
        return params.buffers | mean_over_senders([r.statistics for r in replies], shares.tolist(), spec)
    total = torch.zeros_like(params.buffers.pick(spec.names).flat)
    for reply, share in zip(replies, shares.tolist(), strict=True):
        total.add_(reply.statistics.pick(spec.names).flat, alpha=share)
    return params.buffers | Params(total, spec)


__all__ = ["BN", "ClientFailure", "RoundPlan", "Server", "base_plan", "finish_round", "plan_round"]
