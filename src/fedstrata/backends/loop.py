"""One client after the other, in this process: eager autograd on a bound module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedstrata.backends.protocol import WorkerMaker
from fedstrata.client.update import ClientFailure, ClientTask, train_client
from fedstrata.core.piece import Reply


class Loop:
    """The plainest executor."""

    name = "loop"
    workers = 1

    def __init__(self, make: WorkerMaker) -> None:
        self.kit = make()

    def train(self, works: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Replies in cohort order."""
        for work in works:
            yield train_client(self.kit, work)

    def close(self) -> None:
        """Nothing to release."""
