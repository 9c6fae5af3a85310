"""The protocol of an executor, and the order in which tasks are handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.client.worker import Worker
from fedstrata.core.piece import Reply

WorkerMaker: TypeAlias = Callable[[], Worker]

TAIL = 8  # tasks a worker that are handed out largest first, at the end of a round


class Executor(Protocol):
    """Train the clients of a round.

    Attributes:
        name: as configured.
        workers: clients trained at a time.
    """

    @property
    def name(self) -> str:
        """As configured; of ``auto``, what is fastest so far."""
        ...

    @property
    def workers(self) -> int:
        """Clients trained at a time."""
        ...

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Yield one reply or failure for each task, in any order."""
        ...

    def close(self) -> None:
        """Release workers; a second call does nothing."""
        ...


def in_order(tasks: Sequence[ClientTask], workers: int, size: Callable[[int], int]) -> list[ClientTask]:
    """Return tasks in cohort order, but the last ones largest first, so that no worker waits for one at the end.

    Replies that come nearly in cohort order can be folded as they arrive.

    Args:
        tasks: of a round, in cohort order.
        workers: tasks at a time.
        size: training samples of a client.
    """
    split = max(0, len(tasks) - TAIL * workers)
    tail = sorted(tasks[split:], key=lambda task: (-size(task.client), task.cohort_index))
    return [*tasks[:split], *tail]
