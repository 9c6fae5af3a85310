"""Several clients at a time in threads of this process, each with a bound module of its own."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from fedstrata.backends.protocol import WorkerMaker
from fedstrata.client.update import ClientFailure, ClientTask, train_client
from fedstrata.client.worker import Worker
from fedstrata.core.piece import Reply


class Threads:
    """A pool of threads; torch releases the interpreter lock inside its kernels.

    Args:
        make: builds a worker's kit.
        workers: threads.
        threads: intra-op threads of each.
    """

    name = "threads"

    def __init__(self, make: WorkerMaker, workers: int, threads: int) -> None:
        self.workers = workers
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        kits = [make() for _ in range(workers)]
        self.size = kits[0].setup.samples.size
        for kit in kits:
            self.idle.put(kit)
        self.pool = ThreadPoolExecutor(
            workers, thread_name_prefix="fedstrata", initializer=torch.set_num_threads, initargs=(threads,)
        )

    def train(self, works: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Replies as they come, the largest clients first so that nobody waits for one at the end."""
        order = sorted(works, key=lambda w: (-self.size(w.client), w.place))
        waiting = [self.pool.submit(self._one, work) for work in order]
        for done in as_completed(waiting):
            yield done.result()

    def _one(self, work: ClientTask) -> Reply | ClientFailure:
        kit = self.idle.get()
        try:
            return train_client(kit, work)
        finally:
            self.idle.put(kit)

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True, cancel_futures=True)
