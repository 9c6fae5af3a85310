"""Train several clients at a time in forked processes with shared memory.

It is faster than threads where the interpreter lock or the allocator holds threads back.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedstrata.backends import serialization
from fedstrata.backends.protocol import WorkerMaker, in_order
from fedstrata.backends.shared_memory import Channel
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.client.update import train_client
from fedstrata.client.worker import Worker
from fedstrata.common.allocator import keep_freed_blocks
from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.core.params import Model
from fedstrata.core.piece import Reply


class ForkedWorker:
    """One forked process with a pipe for headers and two memory channels for tensors."""

    def __init__(self, worker: Worker, threads: int, common: Channel, others: Sequence[Connection]) -> None:
        self.inbox, self.outbox = Channel("in"), Channel("out")
        self.pipe, far = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(
            target=_serve,
            args=(worker, threads, common, self.inbox, self.outbox, far, [*others, self.pipe]),
            daemon=True,
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Python 3.12 warns of forks beside threads; the child runs our code only
            self.process.start()
        far.close()
        self.task: ClientTask | None = None
        self.attempt = 0

    def give(self, task: ClientTask, sets: serialization.NameSets, *, common: list[list[object]] | None) -> None:
        """Send one client's task."""
        head, tensors = serialization.task_out(task, sets, shared=common is not None)
        self.task = task
        self.pipe.send_bytes(json.dumps(head | {"tensors": self.inbox.write(tensors), "common": common}).encode())

    def take(self) -> Reply | ClientFailure:
        """Return the answer to the current task; EOFError if the process is gone."""
        head = json.loads(self.pipe.recv_bytes())
        self.task = None
        if "error" in head:
            raise FedstrataError(head["error"])
        if "failure" in head:
            return ClientFailure(*head["failure"])
        return serialization.reply_in(head, self.outbox.read(head["tensors"]))

    def end(self) -> None:
        """Kill the process and free its memory."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.inbox.close()
        self.outbox.close()


class Processes:
    """A fixed pool of forked processes.

    Args:
        make: builds the worker that every process inherits.
        workers: processes.
        threads: intra-op threads of each; must be 1, since a forked OpenMP pool cannot be used.
    """

    name = "processes"

    def __init__(self, make: WorkerMaker, workers: int, threads: int) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError(
                f"executor=processes forks workers with shared memory files, which needs Linux; this is {sys.platform}."
                " Use executor=threads."
            )
        if threads != 1:
            raise ConfigError(
                f"executor=processes needs local.threads=1 (a forked OpenMP pool hangs); it is {threads}. Use"
                " executor=threads or local.threads=1."
            )
        self.worker = make()
        self.workers, self.threads = workers, threads
        self.sets = serialization.NameSets(self.worker.setup.layout)
        self.common = Channel("common")
        self.pool: list[ForkedWorker] = []
        for _ in range(workers):
            self.pool.append(self._fork())

    def _fork(self) -> ForkedWorker:
        return ForkedWorker(self.worker, self.threads, self.common, [w.pipe for w in self.pool])

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Yield replies as they come.

        A worker that dies is replaced and its client tried once more.
        """
        left = in_order(tasks, self.workers, self.worker.setup.samples.size)[::-1]
        shared = tasks[0].sent if tasks else None
        rows = self._publish(shared)
        tries: dict[int, int] = {}
        while left or any(w.task for w in self.pool):
            for worker in self.pool:
                if worker.task is None and left:
                    task = left.pop()
                    tries[task.cohort_index] = tries.get(task.cohort_index, 0) + 1
                    self._give(worker, task, rows if task.sent is shared else None)
            ready = wait([w.pipe for w in self.pool if w.task is not None])
            for worker in [w for w in self.pool if w.pipe in ready]:
                answer = self._answer(worker, left, tries)
                if answer is not None:
                    yield answer

    def _publish(self, model: Model | None) -> list[list[object]] | None:
        if model is None:
            return None
        return self.common.write({"sent": model.flat, "sent.statistics": model.statistics.flat})

    def _give(self, worker: ForkedWorker, task: ClientTask, common: list[list[object]] | None) -> None:
        """Hand over a task; a worker that died while it had none is replaced, which is not a second try."""
        try:
            worker.give(task, self.sets, common=common)
        except OSError:
            self._renew(worker).give(task, self.sets, common=common)

    def _renew(self, worker: ForkedWorker) -> ForkedWorker:
        worker.end()
        position = self.pool.index(worker)
        self.pool[position] = self._fork()
        return self.pool[position]

    def _answer(
        self, worker: ForkedWorker, left: list[ClientTask], tries: dict[int, int]
    ) -> Reply | ClientFailure | None:
        task = worker.task
        assert task is not None
        try:
            return worker.take()
        except (EOFError, OSError):  # OSError: it died while it answered
            self._renew(worker)
            if tries[task.cohort_index] < 2:
                left.append(task)
                return None
            return ClientFailure(
                task.cohort_index,
                task.client,
                "lost",
                f"the worker process died twice while training client {task.client} (out of memory?)",
            )

    def close(self) -> None:
        """End the workers."""
        for worker in self.pool:
            worker.end()
        if self.pool:
            self.common.close()
        self.pool = []


def _serve(
    worker: Worker,
    threads: int,
    common: Channel,
    inbox: Channel,
    outbox: Channel,
    pipe: Connection,
    others: Sequence[Connection],
) -> None:
    """Read tasks, train, answer; the process ends with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no orphan trains on after the server was killed
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    torch.set_num_threads(threads)
    keep_freed_blocks()
    sets = serialization.NameSets(worker.setup.layout)
    model: dict[str, torch.Tensor] = {}
    while True:
        try:
            head: dict[str, Any] = json.loads(pipe.recv_bytes())
        except EOFError:
            os._exit(0)
        if head["common"] is not None:
            model = common.read(head["common"])
        task = serialization.task_in(head, inbox.read(head["tensors"]), model, sets, worker.setup.model)
        try:
            answer = train_client(worker, task)
        except FedstrataError as error:
            pipe.send_bytes(json.dumps({"error": str(error)}).encode())
            continue
        if isinstance(answer, ClientFailure):
            pipe.send_bytes(
                json.dumps({"failure": [answer.cohort_index, answer.client, answer.code, answer.message]}).encode()
            )
        else:
            plain, tensors = serialization.reply_out(answer)
            pipe.send_bytes(json.dumps(plain | {"tensors": outbox.write(tensors)}).encode())
