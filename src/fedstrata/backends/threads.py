"""Train several clients at a time in threads of this process, each with its bound model."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from fedstrata.backends.protocol import WorkerMaker, in_order
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.client.update import train_client
from fedstrata.client.worker import Worker
from fedstrata.core.piece import Reply


class Threads:
    """A pool of threads; torch releases the interpreter lock inside its kernels.

    Args:
        make: builds a worker.
        workers: threads.
        threads: intra-op threads of each.
    """

    name = "threads"

    def __init__(self, make: WorkerMaker, workers: int, threads: int) -> None:
        self.workers = workers
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        made = [make() for _ in range(workers)]
        self.size = made[0].setup.samples.size
        for worker in made:
            self.idle.put(worker)
        self.pool = ThreadPoolExecutor(
            workers, thread_name_prefix="fedstrata", initializer=torch.set_num_threads, initargs=(threads,)
        )

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Yield replies as they come."""
        # only the pool holds the futures, so that a reply is freed once it is folded
        for done in as_completed([self.pool.submit(self._one, t) for t in in_order(tasks, self.workers, self.size)]):
            yield done.result()

    def _one(self, task: ClientTask) -> Reply | ClientFailure:
        worker = self.idle.get()
        try:
            return train_client(worker, task)
        finally:
            self.idle.put(worker)

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True, cancel_futures=True)
