"""Several clients at a time in forked worker processes with shared memory, where the interpreter lock or the allocator
holds threads back.
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
from fedstrata.backends.protocol import WorkerMaker
from fedstrata.backends.shared_memory import Channel
from fedstrata.client.update import ClientFailure, ClientTask, train_client
from fedstrata.client.worker import Worker
from fedstrata.common.allocator import keep_freed_blocks
from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.core.params import Params
from fedstrata.core.piece import Reply


class ForkedWorker:
    """One forked process with a pipe for headers and two memory channels for tensors."""

    def __init__(self, kit: Worker, threads: int, common: Channel, others: Sequence[Connection]) -> None:
        self.inbox, self.outbox = Channel("in"), Channel("out")
        self.pipe, far = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(
            target=_serve, args=(kit, threads, common, self.inbox, self.outbox, far, [*others, self.pipe]), daemon=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Python 3.12 warns of forks beside threads; the child runs our code only
            self.process.start()
        far.close()
        self.work: ClientTask | None = None
        self.attempt = 0

    def give(self, work: ClientTask, sets: serialization.NameSets, *, common: list[list[object]] | None) -> None:
        """Send one client's work."""
        head, tensors = serialization.work_out(work, sets, shared=common is not None)
        self.work = work
        self.pipe.send_bytes(json.dumps(head | {"tensors": self.inbox.write(tensors), "common": common}).encode())

    def take(self) -> Reply | ClientFailure:
        """The answer to the work in hand; EOFError if the process is gone."""
        head = json.loads(self.pipe.recv_bytes())
        self.work = None
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
        make: builds the kit that every worker inherits.
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
        self.kit = make()
        self.workers, self.threads = workers, threads
        self.sets = serialization.NameSets(self.kit.setup.layout)
        self.common = Channel("common")
        self.pool: list[ForkedWorker] = []
        for _ in range(workers):
            self.pool.append(self._fork())

    def _fork(self) -> ForkedWorker:
        return ForkedWorker(self.kit, self.threads, self.common, [w.pipe for w in self.pool])

    def train(self, works: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Replies as they come, the largest clients first.

        A worker that dies is replaced and its client tried once more.
        """
        size = self.kit.setup.samples.size
        left = sorted(works, key=lambda w: (size(w.client), -w.place))
        shared = works[0].sent if works else None
        rows = self._publish(shared)
        tries: dict[int, int] = {}
        while left or any(w.work for w in self.pool):
            for worker in self.pool:
                if worker.work is None and left:
                    work = left.pop()
                    tries[work.place] = tries.get(work.place, 0) + 1
                    self._give(worker, work, rows if work.sent is shared else None)
            ready = wait([w.pipe for w in self.pool if w.work is not None])
            for worker in [w for w in self.pool if w.pipe in ready]:
                answer = self._answer(worker, left, tries)
                if answer is not None:
                    yield answer

    def _publish(self, params: Params | None) -> list[list[object]] | None:
        if params is None:
            return None
        assert params.buffers is not None
        return self.common.write({"sent": params.flat, "sent.buffers": params.buffers.flat})

    def _give(self, worker: ForkedWorker, work: ClientTask, common: list[list[object]] | None) -> None:
        """Hand over work; a worker that died while it had none is replaced, which is nobody's second try."""
        try:
            worker.give(work, self.sets, common=common)
        except OSError:
            self._renew(worker).give(work, self.sets, common=common)

    def _renew(self, worker: ForkedWorker) -> ForkedWorker:
        worker.end()
        place = self.pool.index(worker)
        self.pool[place] = self._fork()
        return self.pool[place]

    def _answer(
        self, worker: ForkedWorker, left: list[ClientTask], tries: dict[int, int]
    ) -> Reply | ClientFailure | None:
        work = worker.work
        assert work is not None
        try:
            return worker.take()
        except (EOFError, OSError):  # OSError: it died while it answered
            self._renew(worker)
            if tries[work.place] < 2:
                left.append(work)
                return None
            return ClientFailure(
                work.place,
                work.client,
                "lost",
                f"the worker process died twice while training client {work.client} (out of memory?)",
            )

    def close(self) -> None:
        """End the workers."""
        for worker in self.pool:
            worker.end()
        if self.pool:
            self.common.close()
        self.pool = []


def _serve(
    kit: Worker,
    threads: int,
    common: Channel,
    inbox: Channel,
    outbox: Channel,
    pipe: Connection,
    others: Sequence[Connection],
) -> None:
    """The life of a worker: read work, train, answer; it ends with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no orphan trains on after the server was killed
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    torch.set_num_threads(threads)
    keep_freed_blocks()
    sets = serialization.NameSets(kit.setup.layout)
    model: dict[str, torch.Tensor] = {}
    while True:
        try:
            head: dict[str, Any] = json.loads(pipe.recv_bytes())
        except EOFError:
            os._exit(0)
        if head["common"] is not None:
            model = common.read(head["common"])
        work = serialization.work_in(head, inbox.read(head["tensors"]), model, sets, kit.setup.params)
        try:
            answer = train_client(kit, work)
        except FedstrataError as error:
            pipe.send_bytes(json.dumps({"error": str(error)}).encode())
            continue
        if isinstance(answer, ClientFailure):
            pipe.send_bytes(
                json.dumps({"failure": [answer.place, answer.client, answer.code, answer.message]}).encode()
            )
        else:
            plain, tensors = serialization.reply_out(answer)
            pipe.send_bytes(json.dumps(plain | {"tensors": outbox.write(tensors)}).encode())
