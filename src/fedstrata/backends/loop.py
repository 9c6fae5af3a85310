"""Train one client after the other, in this process: eager autograd on a bound model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedstrata.backends.protocol import WorkerMaker
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.client.update import train_client
from fedstrata.core.piece import Reply


class Loop:
    """The plainest executor."""

    name = "loop"
    workers = 1

    def __init__(self, make: WorkerMaker, workers: int = 1, threads: int = 1) -> None:  # every executor's arguments
        self.worker = make()

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Yield replies in cohort order."""
        for task in tasks:
            yield train_client(self.worker, task)

    def close(self) -> None:
        """Release nothing."""
