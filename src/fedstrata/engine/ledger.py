"""The bill: bytes that cross the boundary and FLOPs of what ran. Derived from plans and replies, never claimed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedstrata.client.update import ClientTask, ClientUpdate
from fedstrata.client.worker import Worker
from fedstrata.core.piece import Reply
from fedstrata.core.plan import Plan
from fedstrata.storage.container import Shapes
from fedstrata.wire import messages
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
    """Counts rounds as they are committed.

    Attributes:
        kit: a worker of the ledger's own, for probes.
        mails: what mail a client sends, by plan.
        costs: FLOPs a sample, by purpose of the local steps and the extras that go with them: one batch of each purpose
            is run under torch's FLOP counter and thrown away.
    """

    kit: Worker
    total: Cost = Cost()
    costs: dict[str, float] = field(default_factory=dict)
    mails: dict[Hashable, Shapes] = field(default_factory=dict)

    def round(self, works: Sequence[ClientTask], replies: Sequence[Reply]) -> Cost:
        """The bill of a round; everybody who was sent something is counted, also those who failed."""
        bill = Cost()
        for work in works:
            bill += Cost(down=messages.weigh_down(work))
        by_place = {w.place: w for w in works}
        for reply in replies:
            bill += Cost(
                up=messages.weigh_up(reply, codecs_of(self.kit, by_place[reply.place].plan)),
                flops=self.flops(by_place[reply.place], reply.passes),
            )
        self.total += bill
        return bill

    def asked(self, sizes: MessageSize) -> None:
        """A question to clients."""
        self.total += Cost(down=sizes)

    def mail(self, work: ClientTask) -> Shapes:
        """Names, shapes and types of the mail that a client sends under this plan, as one batch of its own shows."""
        if not self.kit.method.has("upload"):
            return {}
        plan = work.plan
        key = (plan.train, plan.up, plan.keep, plan.phases)
        if key not in self.mails:
            reply = self._probe(work)
            self.mails[key] = {
                n: (tuple(t.shape), t.dtype) for n, t in messages.contents(reply).items() if n.startswith("mail/")
            }
        return self.mails[key]

    def flops(self, work: ClientTask, passes: Mapping[str, int]) -> float:
        """FLOPs of a client's passes."""
        if any(_given(purpose, work) not in self.costs for purpose in passes):
            self._probe(work)
        return sum(self.costs[_given(purpose, work)] * samples for purpose, samples in passes.items())

    def _probe(self, work: ClientTask) -> Reply:
        costs, reply = probe(self.kit, work)
        self.costs |= {_given(purpose, work): flops for purpose, flops in costs.items()}
        return reply


def _given(purpose: str, work: ClientTask) -> str:
    """Local steps for a purpose may do more in rounds in which a piece was sent something."""
    names = sorted(f"{piece}/{name}" for piece, extras in work.extras.items() for name in extras)
    return " ".join([purpose, *names])


def probe(kit: Worker, work: ClientTask) -> tuple[dict[str, float], Reply]:
    """FLOPs a sample of everything that a client runs under this plan (forward, backward of what is trained, extra
    forwards), and its reply.
    """
    session = ClientUpdate(replace_costs(kit), work, probe=True)
    loss, steps = session.train(session.begin())
    reply = session.reply(session.end(), loss, steps)
    return session.kit.costs, reply


def replace_costs(kit: Worker) -> Worker:
    """The same worker with an empty list of costs."""
    return replace(kit, costs={})


def codecs_of(kit: Worker, plan: Plan) -> dict[str, str]:
    """The lossless packing of each uploaded tensor, as the chain's last piece declares it."""
    codec = next((p.codec for p in reversed(kit.method.pieces) if p.codec != "dense"), "dense")
    return {} if codec == "dense" else {f"delta/{n}": codec for n in plan.up & kit.setup.layout.parameters}
