"""Costs: bytes that cross the boundary and FLOPs of what ran. Derived from plans and replies, never claimed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedstrata.client.task import ClientTask
from fedstrata.client.update import ClientUpdate
from fedstrata.client.worker import Worker
from fedstrata.core.codec import Shapes
from fedstrata.core.piece import Direction, Reply
from fedstrata.core.plan import Plan
from fedstrata.wire import messages
from fedstrata.wire.codec import Codecs
from fedstrata.wire.frame import MessageSize

NO_BYTES = MessageSize(0, 0)


@dataclass(frozen=True)
class Cost:
    """What a round, or a run, cost.

    Attributes:
        up, down: payload and framing bytes of replies and of what was sent.
        flops: of clients' training; multiply-adds count two, element-wise work is not counted.
    """

    up: MessageSize = NO_BYTES
    down: MessageSize = NO_BYTES
    flops: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.up + other.up, self.down + other.down, self.flops + other.flops)


@dataclass
class Ledger:
    """Count rounds as they are committed.

    Attributes:
        worker: for cost probes.
        payloads: shapes of the payload that a client sends, by plan.
        costs: FLOPs a sample, by purpose of the local steps and the payload that goes with them: one batch of each
            purpose is run under torch's FLOP counter and thrown away.
    """

    worker: Worker
    total: Cost = Cost()
    costs: dict[str, float] = field(default_factory=dict)
    payloads: dict[Hashable, Shapes] = field(default_factory=dict)

    def round(self, tasks: Sequence[ClientTask], replies: Mapping[int, Cost]) -> Cost:
        """Add the cost of a round; everybody who was sent something is counted, also those who failed.

        Args:
            tasks: of the round.
            replies: costs of the replies that came, by cohort index; see :meth:`of_reply`.
        """
        cost = Cost()
        for task in tasks:
            cost += Cost(down=messages.size_down(task, self._codecs(task.plan, "down")))
        for index in sorted(replies):
            cost += replies[index]
        self.total += cost
        return cost

    def of_reply(self, task: ClientTask, reply: Reply) -> Cost:
        """Return the bytes and FLOPs of one reply."""
        up = messages.size_up(reply, self._codecs(task.plan, "up"))
        return Cost(up=up, flops=self.flops(task, reply.cost_by_phase))

    def queried(self, size: MessageSize) -> None:
        """Add a query to clients."""
        self.total += Cost(down=size)

    def payload(self, task: ClientTask) -> Shapes:
        """Return the shapes of the payload that a client sends under this plan, as a probe of one batch shows."""
        if not self.worker.method.has("upload"):
            return {}
        plan = task.plan
        key = (plan.train, plan.upload, plan.client_local, plan.phases)
        if key not in self.payloads:
            self.payloads[key] = messages.payload_shapes(self._probe(task))
        return self.payloads[key]

    def flops(self, task: ClientTask, samples_by_phase: Mapping[str, int]) -> float:
        """Return the FLOPs of a client's local steps."""
        if any(_with_payload(purpose, task) not in self.costs for purpose in samples_by_phase):
            self._probe(task)
        return sum(self.costs[_with_payload(p, task)] * samples for p, samples in samples_by_phase.items())

    def _codecs(self, plan: Plan, direction: Direction) -> Codecs:
        return messages.codecs_of(self.worker.method, self.worker.setup.layout, plan, direction)

    def _probe(self, task: ClientTask) -> Reply:
        costs, reply = probe(self.worker, task)
        self.costs |= {_with_payload(purpose, task): flops for purpose, flops in costs.items()}
        return reply


def _with_payload(purpose: str, task: ClientTask) -> str:
    """Return the purpose with the payload that was sent: local steps may do more with it."""
    names = sorted(f"{piece}/{name}" for piece, payload in task.down_payload.items() for name in payload)
    return " ".join([purpose, *names])


def probe(worker: Worker, task: ClientTask) -> tuple[dict[str, float], Reply]:
    """Return FLOPs a sample of everything that a client runs under this plan, by purpose, and its reply.

    That is the forward pass, the backward pass of what is trained, and further forward passes.
    """
    update = ClientUpdate(replace(worker, costs={}), task, probe=True)
    reply = update.reply(update.train(update.begin()))
    return update.worker.costs, reply
