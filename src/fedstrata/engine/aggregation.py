"""From replies to the server's step: folded as they arrive where the step is a sum, or from all replies at once.

A chain whose pieces look at no single reply needs weighted sums only: of moves, of norm statistics and of payloads. The
fold adds replies in cohort order, whatever the order of their arrival, so its result equals that of a sum over all
replies bit for bit. Weights are known before replies are read, given who replies; so replies are held back up to
``HELD`` bytes, and a failure among the clients whose weights were used already makes the fold invalid. The engine then
trains the folded clients again: an update is a pure function of its task, so the same replies come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedstrata.client.task import ClientTask
from fedstrata.common.errors import MethodError
from fedstrata.core.chain import Method
from fedstrata.core.layout import Layout
from fedstrata.core.params import Model, Params, Spec, mean_over_senders, sum_over_senders
from fedstrata.core.piece import Contribution, Reply, move_of
from fedstrata.core.plan import Plan
from fedstrata.core.state import State, state_tensors

HELD = 32e6
"""Bytes of replies that wait before they are folded; a cohort that fits is never trained again."""


@dataclass(frozen=True)
class Aggregate:
    """What a round's replies amount to.

    Attributes:
        weights: of the clients, [C] or [C, M].
        step: of the aggregated parameters; with weights [C, M], a leading axis of models.
        statistics: aggregated norm statistics; names that no client sent are left out.
        payload_sums: of the pieces' payloads, by piece.
    """

    weights: Tensor
    step: Params
    statistics: Params
    payload_sums: Mapping[str, State]


@dataclass
class Fold:
    """Sums over replies in cohort order, with weights that are known before.

    Args:
        model: the server's, before the round.
        plan: of the round; layout: of the model.
        weights: [C] or [C, M], by position among the contributors.
    """

    model: Model
    plan: Plan
    layout: Layout
    weights: Tensor
    position: int = 0
    total: Tensor | None = None
    statistics: Tensor | None = None
    payloads: dict[str, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spec = self.layout.spec.only(self.plan.aggregate & self.layout.parameters)
        self.statistics_spec = self.layout.statistics.only(
            self.plan.aggregate & frozenset(self.layout.statistics.names)
        )
        self.shares = statistics_shares(self.weights)

    def add(self, reply: Reply, sent: Model) -> None:
        """Add the next reply in cohort order."""
        move = move_of(reply, sent, self.model, frozenset(self.spec.names))
        self.total = add_weighted(self.total, move.flat, self.weights[self.position])
        if self.statistics_spec.names:
            picked = reply.statistics.pick(self.statistics_spec.names).flat
            if self.statistics is None:
                self.statistics = torch.zeros_like(picked)
            self.statistics.add_(picked, alpha=self.shares[self.position])
        for piece, payload in reply.up_payload.items():
            self._add_payload(piece, payload)
        self.position += 1

    def _add_payload(self, piece: str, payload: State) -> None:
        if piece not in self.payloads:
            self.payloads[piece] = State({name: value.clone() for name, value in payload.items()})
            return
        totals, added = state_tensors(self.payloads[piece]), state_tensors(payload)
        if {n: t.shape for n, t in totals.items()} != {n: t.shape for n, t in added.items()}:
            raise MethodError(
                f"{piece}: clients send payloads of different shapes, so they cannot be summed as they arrive. Read "
                "single replies in `observe`."
            )
        for name, total in totals.items():
            total.add_(added[name])

    def result(self) -> Aggregate:
        """Return the sums over all contributors."""
        assert self.total is not None, "a round without replies is not aggregated"
        assert self.position == len(self.weights), "every contributor is added"
        statistics = Params(self.statistics, self.statistics_spec) if self.statistics is not None else _NOTHING
        return Aggregate(self.weights, Params(self.total, self.spec), statistics, self.payloads)


def sums(
    model: Model, plan: Plan, layout: Layout, weights: Tensor, replies: Sequence[Reply], sent: Sequence[Model]
) -> Aggregate:
    """Return the sums over all replies at once; a tensor that only some clients send is averaged over those.

    Their weights are scaled to the sum of all weights.
    """
    spec = layout.spec.only(plan.aggregate & layout.parameters)
    statistics_spec = layout.statistics.only(plan.aggregate & frozenset(layout.statistics.names))
    names = frozenset(spec.names)
    moves = (move_of(reply, received, model, names) for reply, received in zip(replies, sent, strict=True))
    if all(names <= reply.delta.spec.index.keys() for reply in replies):
        step = Params(weighted_sum((move.flat for move in moves), weights), spec)
    elif weights.dim() > 1:
        raise MethodError(
            "weights [clients, models] need all clients to send the same tensors, and in this chain some send only a "
            "part. Leave a piece out."
        )
    else:
        step = mean_over_senders(list(moves), weights.tolist(), spec)
    statistics = aggregate_statistics(replies, statistics_shares(weights), statistics_spec)
    return Aggregate(weights, step, statistics, payload_sums(replies, layout.spec))


def weighted_sum(moves: Iterable[Tensor], weights: Tensor) -> Tensor:
    """Return the sum of moves [P] with weights [C], or the sums [M, P] with weights [C, M], in the order given."""
    total: Tensor | None = None
    for move, weight in zip(moves, weights, strict=True):
        total = add_weighted(total, move, weight)
    assert total is not None, "a round without replies is not aggregated"
    return total


def add_weighted(total: Tensor | None, move: Tensor, weight: Tensor) -> Tensor:
    """Add one weighted move in place; the first one makes the total."""
    if weight.dim():
        column = weight.to(move.dtype).unsqueeze(1) * move  # [M, P]
        return column if total is None else total.add_(column)
    return move * float(weight) if total is None else total.add_(move, alpha=float(weight))


def payload_sums(replies: Sequence[Reply], order: Spec) -> dict[str, State]:
    """Return sums of the pieces' payloads over replies, by piece; a tensor counts where it was sent.

    Names of the model are in the order of its layout.
    """
    totals: dict[str, State] = {}
    for piece in dict.fromkeys(name for reply in replies for name in reply.up_payload):
        payloads = [reply.up_payload[piece] for reply in replies if piece in reply.up_payload]
        totals[piece] = State({name: _sum([p[name] for p in payloads], order) for name in payloads[0]})
    return totals


def aggregate_statistics(replies: Sequence[Reply], shares: Sequence[float], spec: Spec) -> Params:
    """Return norm statistics averaged with the shares of the clients that sent them."""
    if not spec.names:
        return _NOTHING
    if any(not spec.index.keys() <= r.statistics.spec.index.keys() for r in replies):
        return mean_over_senders([r.statistics for r in replies], list(shares), spec)
    total = torch.zeros_like(replies[0].statistics.pick(spec.names).flat)
    for reply, share in zip(replies, shares, strict=True):
        total.add_(reply.statistics.pick(spec.names).flat, alpha=share)
    return Params(total, spec)


def statistics_shares(weights: Tensor) -> list[float]:
    """Return the clients' shares of the norm statistics: their weights, scaled to sum to one."""
    shares = weights.sum(-1) if weights.dim() > 1 else weights
    return (shares / shares.sum()).tolist()


# ---- replies as they arrive


class Collector:
    """Take replies in any order and fold them in cohort order once more than ``HELD`` bytes wait.

    Args:
        fold: makes the fold for these contributors; None where single replies are read, which are then all kept.
        contributions: of the clients that are expected to reply, in cohort order.
        tasks: of the round, by cohort index.
    Attributes:
        kept: replies that are not folded, by cohort index.
        folded: cohort indices of those that are.
        spoiled: a client failed after weights were used that count it.
    """

    def __init__(
        self,
        contributions: Sequence[Contribution],
        tasks: Mapping[int, ClientTask],
        fold: Callable[[Sequence[Contribution]], Fold] | None,
    ) -> None:
        self.contributions, self.tasks, self.make = list(contributions), tasks, fold
        self.kept: dict[int, Reply] = {}
        self.folded: list[int] = []
        self.fold: Fold | None = None
        self.spoiled = False
        self._bytes = 0

    def accept(self, reply: Reply) -> None:
        """Take an accepted reply."""
        self.kept[reply.cohort_index] = reply
        self._bytes += size_of(reply)
        if self.make is not None and self._bytes > HELD and not self.spoiled:
            self._fold(self.make)

    def fail(self, cohort_index: int) -> None:
        """Note that a client does not reply, or that its reply was refused."""
        left = [c for c in self.contributions if c.cohort_index != cohort_index]
        self.spoiled = self.spoiled or (self.fold is not None and len(left) < len(self.contributions))
        self.contributions = left

    def _fold(self, make: Callable[[Sequence[Contribution]], Fold]) -> None:
        """Fold the replies that are next in cohort order."""
        if self.fold is None:
            self.fold = make(self.contributions)
        for contribution in self.contributions[len(self.folded) :]:
            index = contribution.cohort_index
            if index not in self.kept:
                break
            reply = self.kept.pop(index)
            self._bytes -= size_of(reply)
            self.fold.add(reply, self.tasks[index].sent)
            self.folded.append(index)

    def restart(self) -> list[ClientTask]:
        """Drop a spoiled fold and return the tasks that have to be trained again."""
        again = [self.tasks[index] for index in self.folded]
        self.fold, self.folded, self.spoiled = None, [], False
        return again

    def finish(self) -> Aggregate | None:
        """Return the sums if a fold was begun; None where all replies are kept."""
        if self.fold is None or self.make is None:
            return None
        self._fold(self.make)
        return self.fold.result()


def without_tensors(reply: Reply) -> Reply:
    """Return a reply without its update and payload, once they are summed."""
    nothing = Params(reply.delta.flat.new_empty(0), Spec((), ()))  # a slice would keep the vector
    return replace(reply, delta=nothing, statistics=nothing, up_payload={})


def size_of(reply: Reply) -> int:
    """Count the bytes of a reply's tensors, client state apart."""
    total = sum(p.flat.numel() * p.flat.element_size() for p in (reply.delta, reply.statistics))
    return total + sum(
        t.numel() * t.element_size() for state in reply.up_payload.values() for t in state_tensors(state).values()
    )


def foldable(method: Method, plan: Plan) -> bool:
    """Say whether the step is a function of weighted sums over clients that send the same tensors."""
    return not method.sees_replies and not plan.per_client


def _sum(values: Sequence[Params | Tensor], order: Spec) -> Params | Tensor:
    first = values[0]
    if isinstance(first, Params):
        parts = [v for v in values if isinstance(v, Params)]
        shapes = {name: part[name].shape for part in reversed(parts) for name in part}
        names = sorted(shapes, key=lambda name: order.index.get(name, len(order.names)))
        return sum_over_senders(parts, Spec(tuple(names), tuple(shapes[name] for name in names)))
    total = first.clone()
    for value in values[1:]:
        assert isinstance(value, Tensor), "a payload is parameters or a tensor in all replies"
        total += value
    return total


_NOTHING = Params(torch.zeros(0), Spec((), ()))
