"""One client's update: receive, train, upload. Pure: a :class:`ClientTask` goes in, a :class:`Reply` comes out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fedstrata.client.local_steps import LocalSteps, StepObserver
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.client.tools import ClientTools, phase_key
from fedstrata.client.worker import Worker
from fedstrata.common import random_streams
from fedstrata.common.errors import FedstrataError
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import ClientContext, Outcome, Reply
from fedstrata.core.plan import Phase
from fedstrata.core.state import ClientState, State, state_tensors


class ClientUpdate:
    """One client's turn in a round.

    Args:
        worker: who trains.
        task: of the client.
        probe: run one batch of every stretch of steps, under a FLOP counter.
        observer: watches the steps of the main training.
    Attributes:
        tools: what pieces are given to work with.
        context: what every piece sees; see :meth:`at`.
        states: of the pieces, by name.
        steps: local steps over all phases.
        dropout: the stream of the main training's dropout masks.
    """

    def __init__(
        self, worker: Worker, task: ClientTask, *, probe: bool = False, observer: StepObserver | None = None
    ) -> None:
        self.worker, self.task, self.observer = worker, task, observer
        self.tools = ClientTools(worker, task, probe=probe)
        setup, plan = worker.setup, task.plan
        samples = len(self.tools.index)
        self.steps = sum(setup.local_steps(samples, epochs=p.epochs, steps=p.steps) for p in plan.phases)
        stored = task.client_state or ClientState()
        self.states = {n: stored.piece(n, State(p.init_client(setup))) for n, p in worker.method.named.items()}
        self.dropout = random_streams.torch_stream(setup.seed, "dropout", task.round, task.client, task.occurrence)
        self.context = ClientContext(
            setup=setup,
            net=worker.net,
            received=received_model(worker, task),
            down_payload=State(),
            state=State(),
            round=task.round,
            samples=samples,
            counts=worker.data.counts(task.client).to(torch.float32),
            steps=self.steps,
            lr=task.lr,
            phase=plan.phases[0],
            plan=plan,
            first_time=task.client_state is None,
            loss=worker.plain_loss,
            gradient=self._plain_gradient,
            _tools=self.tools,
        )

    def _plain_gradient(self, p: Params, batch: Batch) -> Params:
        return self.worker.gradient(self.worker.plain_loss, p, batch)[0]

    def at(self, name: str, **changes: Any) -> ClientContext:
        """Return the context of one piece."""
        payload = State(self.task.down_payload.get(name, {}))
        return replace(self.context, state=self.states[name], down_payload=payload, _piece=name, **changes)

    # ---- the turn

    def begin(self) -> Model:
        """Receive: return the start point."""
        start = self.context.received
        for name, piece in self.worker.method.named.items():
            start, state = piece.receive(start, self.at(name))
            self.states[name] = State(state)
        return start

    def train(self, start: Model) -> Outcome:
        """Run all phases on the bound vector.

        The vector of the outcome is the bound one, valid until the next turn, unless a piece may keep it.
        """
        worker, bound = self.worker, self.worker.bound
        bound.load(start)
        bound.mode(training=True)
        bound.draw_from(self.dropout)
        total, count, opt_state = 0.0, 0, None
        for phase in self.task.plan.phases:
            names = self.trained(phase)
            loss, wrap, custom = worker.middleware({n: self.at(n, phase=phase) for n in worker.method.named})
            cache = self.tools.plan_cache(phase.name, names, phase.epochs, phase.steps)
            lr = self.task.lr * phase.lr
            stepper = LocalSteps(worker, loss, wrap, names, lr, custom, opt_state, self.observer)
            batches = self.tools.batches(phase.name, epochs=phase.epochs, steps=phase.steps, cache=cache)
            self.tools.take_steps(stepper, phase_key(phase.name, names), batches, cache)
            opt_state = stepper.opt_state
            total, count = total + stepper.total_loss, count + stepper.count
        flat = bound.flat.detach()
        flat = flat.clone() if worker.method.has("upload") else flat
        return Outcome(Model(Params(flat, bound.spec), bound.statistics.clone()), opt_state, total / max(count, 1))

    def trained(self, phase: Phase) -> Names:
        """Return the parameters that move in a phase."""
        plan = self.task.plan
        names = plan.train if phase.train is None else plan.train & phase.train
        return names & self.worker.setup.layout.parameters

    def reply(self, outcome: Outcome) -> Reply:
        """Upload: from the outcome of training to what is sent and stored."""
        worker, task, plan = self.worker, self.task, self.task.plan
        end = outcome.model
        delta = Params(end.flat - self.context.received.flat, end.spec).pick(
            plan.upload & worker.setup.layout.parameters
        )
        payloads: dict[str, State] = {}
        for name, piece in worker.method.named.items():
            delta, payload, state = piece.upload(delta, self.at(name, _outcome=outcome))
            self.states[name] = State(state)
            if payload:
                payloads[name] = State(payload)
        delta = self._compressed(delta, outcome)
        return Reply(
            cohort_index=task.cohort_index,
            client=task.client,
            samples=len(self.tools.index),
            steps=self.steps,
            delta=delta,
            statistics=end.statistics.pick(plan.upload & frozenset(end.statistics)),
            up_payload=payloads,
            loss=outcome.loss,
            cost_by_phase=self.tools.cost_by_phase,
            client_state=self._stored(end),
            activation_cache_use=self.tools.cache_use,
        )

    def _compressed(self, delta: Params, outcome: Outcome) -> Params:
        """Compress the update; pieces that keep an error learn what was lost."""
        method = self.worker.method
        owner = method.owner("compress")
        if not owner.overrides("compress"):
            return delta
        sent = owner.compress(delta, self.at(owner.name, _outcome=outcome))
        for name, piece in method.named.items():
            if piece.overrides("feedback"):
                self.states[name] = State(piece.feedback(delta, sent, self.at(name, _outcome=outcome)))
        return sent

    def _stored(self, end: Model) -> ClientState:
        local = self.task.plan.client_local
        tensors = {n: end[n].detach().clone() for n in end if n in local}
        tensors |= {n: t.clone() for n, t in end.statistics.views.items() if n in local}
        return ClientState({n: state_tensors(s) for n, s in self.states.items() if s}, tensors)

    def settle(self, reply: Reply, new: Model) -> ClientState:
        """Return a participant's state after the merge of the same round."""
        pieces = dict(reply.client_state.pieces)
        for name, piece in self.worker.method.named.items():
            if piece.overrides("settle"):
                pieces[name] = {**pieces.get(name, {}), **state_tensors(piece.settle(new, self.at(name)))}
        return replace(reply.client_state, pieces=pieces)

    def personal(self) -> Model:
        """Return the model that this client uses itself."""
        model = self.context.received
        named = self.worker.method.named
        for verb in ("personal_model", "refine"):
            for name, piece in named.items():
                if piece.overrides(verb):
                    model = getattr(piece, verb)(model, self.at(name))
        return model


def received_model(worker: Worker, task: ClientTask) -> Model:
    """Join what was sent, the client's stored tensors, and what every client has known from the start."""
    layout, download = worker.setup.layout, task.plan.download
    if layout.all <= download:
        return task.sent
    stored = task.client_state.tensors if task.client_state is not None else {}
    local = {n: t for n, t in stored.items() if n not in download}
    initial = worker.setup.model

    def join(sent: Params, first: Params) -> Params:
        mine = {n: local[n] for n in first if n in local}
        joined = first | sent.pick(download & frozenset(first))
        return joined | Params.of(mine) if mine else joined

    return Model(join(task.sent.params, initial.params), join(task.sent.statistics, initial.statistics))


def reason_left_out(worker: Worker, task: ClientTask) -> ClientFailure | None:
    """Return why a client cannot train, or None; such a client is left out and named."""
    n = len(worker.data.training(task.client))
    if n == 0:
        message = f"client {task.client} has no training sample"
        return ClientFailure(task.cohort_index, task.client, "empty", message)
    if n == 1 and worker.batch_dependent:
        message = f"client {task.client} has one training sample, which a batch norm cannot train on"
        return ClientFailure(task.cohort_index, task.client, "single", message)
    return None


def train_client(worker: Worker, task: ClientTask) -> Reply | ClientFailure:
    """Run one client's update. A client whose code or data raise is a failure, never the end of the run."""
    left_out = reason_left_out(worker, task)
    if left_out is not None:
        return left_out
    try:
        update = ClientUpdate(worker, task)
        return update.reply(update.train(update.begin()))
    except FedstrataError:
        raise  # the run itself is invalid
    except Exception as error:  # noqa: BLE001  # what a client's model, data or piece raises, under every executor
        # halves of surrogate pairs fit into no file
        message = f"{type(error).__name__}: {error}"[:500].encode(errors="replace").decode()
        return ClientFailure(task.cohort_index, task.client, "raised", message)
