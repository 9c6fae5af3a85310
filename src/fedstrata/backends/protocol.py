"""The protocol of an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from fedstrata.client.update import ClientFailure, ClientTask
from fedstrata.client.worker import Worker
from fedstrata.core.piece import Reply

WorkerMaker: TypeAlias = Callable[[], Worker]


class Executor(Protocol):
    """Trains the clients of a round.

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

    def train(self, works: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """One reply or failure for each work, in any order."""
        ...

    def close(self) -> None:
        """Release workers; a second call does nothing."""
        ...
