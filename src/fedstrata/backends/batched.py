"""Clients stacked along a leading axis: one pass for several small models, on as many threads as there are workers."""

from __future__ import annotations

import queue
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from fedstrata.backends.batched_steps import Stack, StackedSteps
from fedstrata.backends.protocol import WorkerMaker
from fedstrata.client.update import ClientFailure, ClientTask, ClientUpdate, phase_key, run_steps, train_client, why_not
from fedstrata.client.worker import Worker
from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.core.params import Params
from fedstrata.core.piece import Reply

NUMBERS = 1_100_000  # parameters of a stack, so that weights and gradients stay in the cache; measured, see bench/
LARGEST = 32  # clients of a stack


class Batched:
    """Stacks of clients; equal to ``loop`` to 1e-6, not bit for bit.

    Clients are stacked most steps first. Where dropout or a piece looks inside a batch, only clients of equal size
    share a stack; otherwise shorter batches are padded with weight 0.

    Args:
        make: builds a worker's kit.
        workers: stacks at a time.
        threads: intra-op threads of each.
    Raises:
        ConfigError: a model that cannot be stacked.
    """

    name = "batched"

    def __init__(self, make: WorkerMaker, workers: int, threads: int) -> None:
        self.workers = workers
        kits = [make() for _ in range(workers)]
        refuse(kits[0])
        for kit in kits:
            kit.bound.twin("eval"), kit.bound.twin("batch")  # copies cannot be made under vmap
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for kit in kits:
            self.idle.put(kit)
        first = kits[0]
        self.size = first.setup.samples.size
        self.steps = first.setup.local_steps
        self.equal = bool(first.bound.dropouts) or any(p.splits for p in first.method.pieces)
        self.most = max(1, min(LARGEST, NUMBERS // first.bound.spec.total))
        self.pool = ThreadPoolExecutor(
            workers, thread_name_prefix="fedstrata", initializer=torch.set_num_threads, initargs=(threads,)
        )

    def train(self, works: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Replies, a stack at a time."""
        waiting = [self.pool.submit(self._stack, group) for group in self._groups(works)]
        for done in as_completed(waiting):
            yield from done.result()

    def _groups(self, works: Sequence[ClientTask]) -> list[list[ClientTask]]:
        """Works that train alike, by falling size, cut into stacks."""
        kinds: dict[Hashable, list[ClientTask]] = {}
        for work in sorted(works, key=lambda w: (-self.size(w.client), w.place)):
            kinds.setdefault(
                (work.plan.train, work.plan.phases, self.size(work.client) if self.equal else 0), []
            ).append(work)
        parts = []
        for group in kinds.values():
            least = -(-len(group) // self.most)
            count = (
                least if self.equal else min(len(group), -(-least // self.workers) * self.workers)
            )  # no worker without a stack
            each = -(-len(group) // count)
            parts += [group[i : i + each] for i in range(0, len(group), each)]
        return parts

    def _stack(self, works: Sequence[ClientTask]) -> list[Reply | ClientFailure]:
        kit = self.idle.get()
        try:
            return train_stack(kit, works)
        finally:
            self.idle.put(kit)

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True, cancel_futures=True)


def refuse(kit: Worker) -> None:
    """A model that cannot be stacked."""
    if kit.bound.norms:
        raise ConfigError(
            "executor=batched cannot stack batch norms, whose statistics belong to one client; use norm=group or none,"
            " or another executor."
        )
    recurrent = [g.name for g in kit.setup.layout.groups.values() if g.kind == "recurrent"]
    if recurrent:
        raise ConfigError(
            f"executor=batched cannot stack recurrent layers ({', '.join(recurrent)}); use executor=loop, threads or"
            " processes."
        )


def train_stack(kit: Worker, works: Sequence[ClientTask]) -> list[Reply | ClientFailure]:
    """Local updates of several clients of one plan. If a stack fails, its clients are tried alone, so that only the
    guilty one is left out.

    Raises:
        ConfigError: every client can be trained alone, so it is the chain that cannot be stacked.
    """
    refused = [why for w in works if (why := why_not(kit, w)) is not None]
    left = [w for w in works if all(w.place != f.place for f in refused)]
    if not left:
        return list(refused)
    try:
        return [*refused, *_train(kit, left)]
    except FedstrataError:
        raise
    except (RuntimeError, ArithmeticError, ValueError, IndexError, KeyError, TypeError, OSError, MemoryError) as error:
        alone = [train_client(kit, w) for w in left]
        if all(isinstance(a, Reply) for a in alone):
            raise ConfigError(
                f"executor=batched cannot stack {kit.method} ({type(error).__name__}: {str(error)[:300]}); use"
                " executor=loop, threads or processes."
            ) from error
        return [*refused, *alone]


def _train(kit: Worker, works: Sequence[ClientTask]) -> list[Reply | ClientFailure]:
    sessions = [ClientUpdate(kit, w) for w in works]
    starts = [s.begin() for s in sessions]
    stack = Stack(kit, sessions, starts)
    kit.bound.mode(training=True)
    for phase in works[0].plan.phases:
        names = sessions[0].trained(phase)
        with torch.enable_grad():
            run_steps(StackedSteps(stack, phase, names), stack.batches(phase))
        for session, samples in zip(sessions, stack.samples, strict=True):
            key = phase_key(phase, names)
            session.passes[key] = session.passes.get(key, 0) + samples
            if session.keep(phase.name, names, phase.epochs, phase.steps) is not None:
                session.note(f"{phase.name}: not kept, executor=batched runs all layers of a stack")
    replies: list[Reply | ClientFailure] = []
    for i, (session, start) in enumerate(zip(sessions, starts, strict=True)):
        session.view.carry = None if stack.carry is None else _lane(stack.carry, i)
        end = Params(stack.flat[i].clone(), kit.bound.spec, buffers=start.buffers)
        replies.append(session.reply(end, float(stack.losses[i]) / max(stack.counts[i], 1), session.steps))
    return replies


def _lane(carry: Params, i: int) -> Params:
    return Params(carry.flat[i].clone(), carry.spec) if isinstance(carry, Params) else carry
