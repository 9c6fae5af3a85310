"""Train clients stacked along a leading axis: one pass for several small models, on one thread a worker."""

from __future__ import annotations

import queue
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from fedstrata.backends.batched_steps import Stack, StackedSteps
from fedstrata.backends.protocol import WorkerMaker
from fedstrata.client.frozen_prefix import NotCached
from fedstrata.client.local_steps import run_steps
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.client.tools import phase_key
from fedstrata.client.update import ClientUpdate, reason_left_out, train_client
from fedstrata.client.worker import Worker
from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Outcome, Reply

NUMBERS = 1_100_000  # parameters of a stack, so that weights and gradients stay in the cache; measured, see bench/
LARGEST = 32  # clients of a stack
WINDOW = 256  # clients that are sorted by size together, so that replies of a large cohort come nearly in order


class Batched:
    """Train stacks of clients; equal to ``loop`` to 1e-6, not bit for bit.

    Clients are stacked most steps first. Where dropout or a piece looks inside a batch, only clients of equal size
    share a stack; otherwise shorter batches are padded with weight 0.

    Args:
        make: builds a worker.
        workers: stacks at a time.
        threads: intra-op threads of each.
    Raises:
        ConfigError: a model that cannot be stacked.
    """

    name = "batched"

    def __init__(self, make: WorkerMaker, workers: int, threads: int) -> None:
        self.workers = workers
        made = [make() for _ in range(workers)]
        refuse(made[0])
        for worker in made:
            worker.bound.twin("eval"), worker.bound.twin("batch_stats")  # copies cannot be made under vmap
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in made:
            self.idle.put(worker)
        first = made[0]
        self.size = first.setup.samples.size
        self.steps = first.setup.local_steps
        self.equal = bool(first.bound.dropouts) or any(p.batching == "splits" for p in first.method.pieces)
        self.most = max(1, min(LARGEST, NUMBERS // first.bound.spec.total))
        self.pool = ThreadPoolExecutor(
            workers, thread_name_prefix="fedstrata", initializer=torch.set_num_threads, initargs=(threads,)
        )

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Yield replies, a stack at a time."""
        windows = [tasks[i : i + WINDOW] for i in range(0, len(tasks), WINDOW)]
        for done in as_completed([self.pool.submit(self._stack, group) for w in windows for group in self._groups(w)]):
            yield from done.result()

    def _groups(self, tasks: Sequence[ClientTask]) -> list[list[ClientTask]]:
        """Return tasks that train alike, by falling size, cut into stacks."""
        alike: dict[Hashable, list[ClientTask]] = {}
        for task in sorted(tasks, key=lambda t: (-self.size(t.client), t.cohort_index)):
            key = (task.plan.train, task.plan.phases, self.size(task.client) if self.equal else 0)
            alike.setdefault(key, []).append(task)
        stacks = []
        for group in alike.values():
            least = -(-len(group) // self.most)
            # no worker is left without a stack
            count = least if self.equal else min(len(group), -(-least // self.workers) * self.workers)
            each = -(-len(group) // count)
            stacks += [group[i : i + each] for i in range(0, len(group), each)]
        return stacks

    def _stack(self, tasks: Sequence[ClientTask]) -> list[Reply | ClientFailure]:
        worker = self.idle.get()
        try:
            return train_stack(worker, tasks)
        finally:
            self.idle.put(worker)

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True, cancel_futures=True)


def refuse(worker: Worker) -> None:
    """Refuse a model that cannot be stacked."""
    if worker.bound.norms:
        raise ConfigError(
            "executor=batched cannot stack batch norms, whose statistics belong to one client; use norm=group or none,"
            " or another executor."
        )
    recurrent = [g.name for g in worker.setup.layout.groups.values() if g.kind == "recurrent"]
    if recurrent:
        raise ConfigError(
            f"executor=batched cannot stack recurrent layers ({', '.join(recurrent)}); use executor=loop, threads or"
            " processes."
        )


def train_stack(worker: Worker, tasks: Sequence[ClientTask]) -> list[Reply | ClientFailure]:
    """Run the updates of several clients of one plan.

    If a stack fails, its clients are tried alone, so that only the guilty one is left out.

    Raises:
        ConfigError: every client can be trained alone, so it is the chain that cannot be stacked.
    """
    left_out = [failure for t in tasks if (failure := reason_left_out(worker, t)) is not None]
    out = {failure.cohort_index for failure in left_out}
    left = [t for t in tasks if t.cohort_index not in out]
    if not left:
        return list(left_out)
    try:
        return [*left_out, *_train(worker, left)]
    except FedstrataError:
        raise
    except (RuntimeError, ArithmeticError, ValueError, IndexError, KeyError, TypeError, OSError, MemoryError) as error:
        alone = [train_client(worker, t) for t in left]
        if all(isinstance(a, Reply) for a in alone):
            raise ConfigError(
                f"executor=batched cannot stack {worker.method} ({type(error).__name__}: {str(error)[:300]}); use"
                " executor=loop, threads or processes."
            ) from error
        return [*left_out, *alone]


def _train(worker: Worker, tasks: Sequence[ClientTask]) -> list[Reply | ClientFailure]:
    updates = [ClientUpdate(worker, t) for t in tasks]
    starts = [u.begin() for u in updates]
    stack = Stack(worker, updates, starts)
    worker.bound.mode(training=True)
    for phase in tasks[0].plan.phases:
        names = updates[0].trained(phase)
        with torch.enable_grad():
            run_steps(StackedSteps(stack, phase, names), stack.batches(phase))
        for update, samples in zip(updates, stack.samples, strict=True):
            update.tools.count(phase_key(phase.name, names), samples)
            if update.tools.plan_cache(phase.name, names, phase.epochs, phase.steps) is not None:
                update.tools.note_cache(phase.name, NotCached("executor=batched runs all layers of a stack"))
    replies: list[Reply | ClientFailure] = []
    for i, (update, start) in enumerate(zip(updates, starts, strict=True)):
        opt_state = None if stack.opt_state is None else _lane(stack.opt_state, i)
        end = Model(Params(stack.flat[i].clone(), worker.bound.spec), start.statistics)
        replies.append(update.reply(Outcome(end, opt_state, float(stack.losses[i]) / max(stack.counts[i], 1))))
    return replies


def _lane(opt_state: Params, i: int) -> Params:
    return Params(opt_state.flat[i].clone(), opt_state.spec) if isinstance(opt_state, Params) else opt_state
