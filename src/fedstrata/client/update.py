"""One client's local update: the only local loop.

Pure: what a client needs goes in as :class:`ClientTask`, a :class:`Reply` comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedstrata.client.activation_cache import ActivationCache
from fedstrata.client.batch_order import Order
from fedstrata.client.local_steps import Fold, LocalSteps
from fedstrata.client.worker import FlopCounter, Worker
from fedstrata.common import random_streams
from fedstrata.common.errors import FedstrataError
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.core.params import Params
from fedstrata.core.piece import ClientContext, Gradient, Loss, Reply
from fedstrata.core.plan import Phase, Plan
from fedstrata.core.state import State, pack, unpack


@dataclass(frozen=True)
class ClientTask:
    """What one client is asked to do.

    Attributes:
        place: in the cohort; client: its id; occurrence: how often the client stands before this place.
        round: zero-based.
        plan: of this place.
        sent: what the server sent: full parameters with statistics; what the plan does not send is not read.
        extras: counted extras, by piece.
        row: the client's stored row, or None.
        lr: this round's local learning rate.
    """

    place: int
    client: int
    occurrence: int
    round: int
    plan: Plan
    sent: Params
    extras: Mapping[str, State]
    row: Mapping[str, Tensor] | None
    lr: float


@dataclass(frozen=True)
class ClientFailure:
    """A client without a usable reply."""

    place: int
    client: int
    code: str
    message: str


# ---- one client
# ---------------------------------------------------------------------------------------------------------------------------


class Stepper(Protocol):
    """Something that takes a local step."""

    def step(self, batch: Batch) -> None:
        """Move the parameters by one batch."""


def run_steps(stepper: Stepper, batches: Iterable[Batch]) -> None:
    """The only local loop."""
    for batch in batches:
        stepper.step(batch)


class ClientUpdate:
    """One client's turn: receive, train, upload. It is also the tools that pieces are given."""

    def __init__(self, kit: Worker, work: ClientTask, *, probe: bool = False) -> None:
        self.kit, self.work, self.probe = kit, work, probe
        self.passes: dict[str, int] = {}
        self.front: dict[str, int] = {}  # stretches of training, by what was kept in front of their layers
        self.index = kit.data.training(work.client)
        self._taken: tuple[Tensor, Tensor] | None = None
        self.now: tuple[str | int, ...] = ()  # inside a stretch of steps: its purpose, and the step
        setup, plan = kit.setup, work.plan
        start = self._compose()
        phase = plan.phases[0]
        self.steps = sum(self._length(p) for p in plan.phases)
        self.view = ClientContext(
            net=kit.net,
            layout=setup.layout,
            setup=setup,
            anchor=start,
            extras={},
            own={},
            round=work.round,
            samples=len(self.index),
            counts=kit.data.counts(work.client).to(torch.float32),
            steps=self.steps,
            lr=work.lr,
            phase=phase,
            plan=plan,
            loss=kit.plain_loss,
            gradient=self._slope,
            tools=self,
            fresh=work.row is None,
        )
        self.rows = {n: unpack(n, p.init_client(setup), work.row) for n, p in kit.method.named.items()}
        self.dropout = random_streams.torch_stream(setup.seed, "dropout", work.round, work.client, work.occurrence)

    # -- what the client starts with

    def _compose(self) -> Params:
        """What was sent, the client's own stored tensors, and what everyone has known from the start."""
        kit, work = self.kit, self.work
        layout, down = kit.setup.layout, work.plan.down
        if layout.all <= down:
            return work.sent
        stored = {n[5:]: t for n, t in (work.row or {}).items() if n.startswith("kept/")}
        initial = kit.setup.params
        mine = {n: t for n, t in stored.items() if n not in down}

        def join(sent: Params, first: Params) -> Params:
            own = {n: mine[n] for n in first if n in mine}
            joined = first | sent.pick(down & frozenset(first))
            return joined | Params.of(own) if own else joined

        params = join(Params(work.sent.flat, work.sent.spec), Params(initial.flat, initial.spec))
        assert work.sent.buffers is not None
        assert initial.buffers is not None
        return Params(params.flat, params.spec, buffers=join(work.sent.buffers, initial.buffers))

    def _length(self, phase: Phase) -> int:
        s = self.kit.setup
        return s.local_steps(len(self.index), epochs=phase.epochs, steps=phase.steps)

    def at(self, name: str, **changes: Any) -> ClientContext:
        """The view of one piece."""
        return replace(
            self.view, own=self.rows[name], extras=dict(self.work.extras.get(name, {})), piece=name, **changes
        )

    # -- batches

    def _order(self, purpose: str, share: float = 1.0) -> Order:
        s, w = self.kit.setup, self.work
        n = max(1, int(share * len(self.index)))
        return Order(
            s.seed,
            (purpose, w.round, w.client, w.occurrence),
            n,
            s.batch,
            self.kit.local.draw,
            self.kit.batch_dependent,
        )

    def positions(
        self, purpose: str, *, epochs: int | None = None, steps: int | None = None, share: float = 1.0
    ) -> Iterator[tuple[int, Tensor]]:
        """(epoch, positions) of the batches for this purpose; a probe sees the first only."""
        found = self._order(purpose, share).batches(epochs=epochs, steps=steps)
        for item in found:
            yield item
            if self.probe:
                return

    def read(self, purpose: str, epoch: int, positions: Tensor) -> Batch:
        """The samples at these positions, augmented by a stream of (client, round, epoch, sample)."""
        data = self.kit.data
        if data.train.lazy:
            chosen = self.index[positions]
            x, y = data.train.take(chosen), data.train.y[chosen]
        else:
            if self._taken is None:
                self._taken = data.train.take(self.index), data.train.y[self.index]
            x, y = self._taken[0].index_select(0, positions), self._taken[1].index_select(0, positions)
        if data.augment is not None:
            key = random_streams.key(
                self.kit.setup.seed, "augment", purpose, self.work.round, self.work.client, self.work.occurrence, epoch
            )
            x = data.augment(
                x, torch.from_numpy(random_streams.uniforms(key, self.index[positions].numpy(), data.augment.draws))
            )
        return Batch(x, y)

    def batches(
        self,
        purpose: str,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        share: float = 1.0,
        kept: ActivationCache | None = None,
    ) -> Iterator[Batch]:
        """Batches for one stretch of steps; an epoch or step count that is not given is the run's."""
        if epochs is None and steps is None:
            epochs, steps = self.kit.setup.epochs, self.kit.setup.steps
        outer = self.now
        for number, (epoch, positions) in enumerate(self.positions(purpose, epochs=epochs, steps=steps, share=share)):
            batch = self.read(purpose, epoch, positions)
            if kept is not None:
                kept.at(batch.x, positions)
            self.now = purpose, number
            yield batch
        self.now = outer

    # -- the tools of a piece

    def noise(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        """Derived random numbers; see :meth:`ClientContext.noise`."""
        return self.draw(name, shape, kind, self.now)

    def draw(self, name: str, shape: Sequence[int], kind: str, now: tuple[str | int, ...] = ()) -> Tensor:
        """Noise of a local step, (purpose, number), or of the whole round."""
        generator = random_streams.torch_stream(
            self.kit.setup.seed, "noise", name, self.work.round, self.work.client, self.work.occurrence, *now
        )
        return (
            torch.rand(tuple(shape), generator=generator)
            if kind == "uniform"
            else torch.randn(tuple(shape), generator=generator)
        )

    def _slope(self, p: Params, batch: Batch) -> Params:
        return self.kit.slope(self.kit.plain_loss, p, batch)[0]

    def fit(
        self,
        start: Params,
        purpose: str,
        *,
        loss: Loss | None = None,
        gradient: Callable[[Gradient], Gradient] | None = None,
        train: Names | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
    ) -> Params:
        """Private training; see :class:`fedstrata.core.piece.Tools`."""
        kit = self.kit
        if len(self.index) < (2 if kit.batch_dependent else 1):
            return start  # nothing to train on: no sample, or one that a batch norm cannot look at
        bound = kit.bound
        bound.load(start)
        bound.mode(training=True)
        bound.draw_from(
            random_streams.torch_stream(
                kit.setup.seed, "dropout", purpose, self.work.round, self.work.client, self.work.occurrence
            )
        )
        layout = kit.setup.layout
        names = (layout.parameters if train is None else train & layout.parameters) - layout.settings
        kept = self.keep(purpose, names, epochs, steps)
        stepper = LocalSteps(
            kit, loss or kit.plain_loss, gradient or (lambda g: g), names, self.work.lr if lr is None else lr
        )
        self._go(stepper, purpose, self.batches(purpose, epochs=epochs, steps=steps, kept=kept), kept)
        return Params(bound.flat.detach().clone(), bound.spec, buffers=bound.buffers.clone())

    def scan(
        self, function: Callable[[Any, Batch], Any], carry: Any, purpose: str, *, epochs: int = 1, share: float = 1.0
    ) -> Any:
        """Fold over batches; see :class:`fedstrata.core.piece.Tools`."""
        fold = Fold(function, carry)
        if len(self.index):
            self._go(fold, purpose, self.batches(purpose, epochs=epochs, share=share))
        return fold.carry

    def keep(self, purpose: str, names: Names, epochs: int | None, steps: int | None) -> ActivationCache | None:
        """What is kept in front of these parameters over one stretch of steps; a reason against it is noted."""
        n, s = len(self.index), self.kit.setup
        again = s.local_steps(n, epochs=epochs, steps=steps) > s.local_steps(n, epochs=1)
        found = self.kit.keep(names, n, again=again)
        if isinstance(found, str):
            self.note(f"{purpose}: not kept, {found}")
            return None
        return found

    def note(self, said: str) -> None:
        """Count a stretch of training by what was kept in front of its layers."""
        self.front[said] = self.front.get(said, 0) + 1

    def _go(
        self, stepper: LocalSteps | Fold, purpose: str, batches: Iterable[Batch], kept: ActivationCache | None = None
    ) -> None:
        outer, self.kit.bound.front = self.kit.bound.front, kept
        try:
            if self.probe:
                self._weigh(stepper, purpose, batches, kept)
            else:
                run_steps(stepper, batches)
        finally:
            self.kit.bound.front = outer
        counted = {purpose: stepper.samples}
        if kept is not None:
            short = purpose.partition(":")[0]
            self.note(
                f"{short}: kept"
                if kept.used
                else f"{short}: not kept, the method looks at other points or at parts of batches"
            )
            counted = {f"{purpose}:kept": stepper.samples, f"prefix {purpose}": kept.count} if kept.used else counted
        for key, samples in counted.items():
            self.passes[key] = self.passes.get(key, 0) + samples

    def _weigh(
        self, stepper: LocalSteps | Fold, purpose: str, batches: Iterable[Batch], kept: ActivationCache | None
    ) -> None:
        """FLOPs a sample; with what is kept in front, of both parts too."""
        inner, costs = FlopCounter(), self.kit.costs
        if kept is not None:
            kept.watch = lambda: inner
        with FlopCounter() as counter:
            run_steps(stepper, batches)
        total, samples = counter.get_total_flops(), max(stepper.samples, 1)
        costs[purpose] = total / samples
        if kept is not None and kept.used:
            front = inner.get_total_flops()
            costs |= {f"{purpose}:kept": (total - front) / samples, f"prefix {purpose}": front / max(kept.count, 1)}

    # -- the turn

    def begin(self) -> Params:
        """Receive: the start point. The bound vector holds it afterwards."""
        start = self.view.anchor
        for name, piece in self.kit.method.named.items():
            start, self.rows[name] = piece.receive(start, self.rows[name], self.at(name))
        return start

    def train(self, start: Params) -> tuple[float, int]:
        """All phases on the bound vector; mean loss and steps."""
        kit = self.kit
        kit.bound.load(start)
        kit.bound.mode(training=True)
        kit.bound.draw_from(self.dropout)
        total, count, carry = 0.0, 0, None
        for phase in self.work.plan.phases:
            names = self.trained(phase)
            loss, wrap, custom = kit.middleware({n: self.at(n, phase=phase) for n in kit.method.named})
            kept = self.keep(phase.name, names, phase.epochs, phase.steps)
            stepper = LocalSteps(kit, loss, wrap, names, self.work.lr * phase.lr, custom, carry)
            self._go(
                stepper,
                phase_key(phase, names),
                self.batches(phase.name, epochs=phase.epochs, steps=phase.steps, kept=kept),
                kept,
            )
            carry = stepper.carry
            total, count = total + stepper.total, count + stepper.count
        self.view.carry = carry
        return total / max(count, 1), self.steps

    def trained(self, phase: Phase) -> Names:
        """The parameters that move in a phase."""
        plan = self.work.plan
        names = plan.train if phase.train is None else plan.train & phase.train
        return names & self.kit.setup.layout.parameters

    def end(self) -> Params:
        """Where training ended.

        The vector is the bound one itself, good until the next turn, unless a piece may keep it.
        """
        bound = self.kit.bound
        flat = bound.flat.detach()
        return Params(
            flat.clone() if self.kit.method.has("upload") else flat, bound.spec, buffers=bound.buffers.clone()
        )

    def reply(self, end: Params, loss: float, steps: int) -> Reply:
        """Upload: from the end point (with its statistics) to what is sent and stored."""
        kit, work, plan = self.kit, self.work, self.work.plan
        after = {"carry": self.view.carry, "end": end, "train_loss": loss}
        up = plan.up & kit.setup.layout.parameters
        delta = Params(end.flat - self.view.anchor.flat, end.spec).pick(up)
        mail: dict[str, State] = {}
        for name, piece in kit.method.named.items():
            delta, letters, self.rows[name] = piece.upload(delta, self.rows[name], self.at(name, **after))
            if letters:
                mail[name] = letters
        assert end.buffers is not None
        statistics = end.buffers.pick(plan.up & frozenset(end.buffers))
        kept = {n: end[n].detach().clone() for n in end if n in plan.keep} | {
            n: t.clone() for n, t in end.buffers.views.items() if n in plan.keep
        }
        row = pack({n: s for n, s in self.rows.items() if s}, kept)
        return Reply(
            work.place, work.client, delta, statistics, mail, len(self.index), steps, loss, self.passes, row, self.front
        )

    def personal(self) -> Params:
        """The model that this client uses itself."""
        p = self.view.anchor
        for name, piece in self.kit.method.named.items():
            p = piece.personalise(p, self.rows[name], self.at(name))
        return p


def phase_key(phase: Phase, names: Names) -> str:
    """Names a stretch of training in the bill: the phase and which parameters moved."""
    return f"{phase.name}:{hash_names(names)}"


def hash_names(names: Names) -> str:
    """A short digest of a set of names, equal on every machine."""
    return f"{random_streams.key(0, 'names', *sorted(names)):016x}"


def why_not(kit: Worker, work: ClientTask) -> ClientFailure | None:
    """A client that cannot train, with the reason; it is left out and named."""
    n = len(kit.data.training(work.client))
    if n == 0:
        return ClientFailure(work.place, work.client, "empty", f"client {work.client} has no training sample")
    if n == 1 and kit.batch_dependent:
        return ClientFailure(
            work.place,
            work.client,
            "single",
            f"client {work.client} has one training sample, which a batch norm cannot train on",
        )
    return None


def train_client(kit: Worker, work: ClientTask) -> Reply | ClientFailure:
    """One client's local update. A client whose own code or data raise is a failure, never the end of the run."""
    refused = why_not(kit, work)
    if refused is not None:
        return refused
    try:
        session = ClientUpdate(kit, work)
        loss, steps = session.train(session.begin())
        return session.reply(session.end(), loss, steps)
    except FedstrataError:
        raise  # the run itself cannot be meant
    # whatever a client's model, data or piece raise, alike under every executor
    except Exception as error:  # noqa: BLE001
        said = (
            f"{type(error).__name__}: {error}"[:500].encode(errors="replace").decode()
        )  # halves of surrogates fit into no file
        return ClientFailure(work.place, work.client, "raised", said)
