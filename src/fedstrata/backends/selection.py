"""Which executor trains: the configured one, or the fastest of the bit-equal ones, by measuring."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fedstrata.backends.batched import Batched
from fedstrata.backends.loop import Loop
from fedstrata.backends.processes import Processes
from fedstrata.backends.protocol import Executor, WorkerMaker
from fedstrata.backends.threads import Threads
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.core.piece import Reply

PASSES = 2  # rounds that each candidate is given; the better one counts

OnChoice: TypeAlias = Callable[[str, int, Mapping[str, float]], None]
Factory: TypeAlias = Callable[..., Executor]


@dataclass(frozen=True)
class ExecutorRow:
    """One registered executor.

    Attributes:
        make: called with (make_worker, workers, threads) and the settings that users write.
        summary: one line.
    """

    make: Factory
    summary: str


EXECUTORS: dict[str, ExecutorRow] = {
    "loop": ExecutorRow(Loop, "one client after the other in this process"),
    "threads": ExecutorRow(Threads, "several clients at a time in threads; bit-equal to loop"),
    "processes": ExecutorRow(
        Processes, "several clients at a time in forked processes with shared memory; bit-equal to loop"
    ),
    "batched": ExecutorRow(Batched, "clients stacked along an axis, for small models; equal to loop to 1e-6"),
}


def build(name: str, make: WorkerMaker, workers: int, threads: int, on_choice: OnChoice) -> Executor:
    """Build an executor by name.

    Args:
        name: one of EXECUTORS, or "auto".
        make: builds a worker.
        workers: clients at a time.
        threads: intra-op threads of each.
        on_choice: called with (executor, workers, samples a second by candidate) once ``auto`` has chosen.
    """
    if name == "auto":
        return Auto(make, workers, threads, on_choice)
    return EXECUTORS[name].make(make, workers, threads)


class Auto:
    """Give each candidate the same number of rounds of the run itself, then keep the fastest; nothing is trained twice."""

    def __init__(self, make: WorkerMaker, workers: int, threads: int, on_choice: OnChoice) -> None:
        self.candidates: list[Executor] = []
        if workers > 1 and threads == 1 and sys.platform.startswith("linux"):
            # forked first, before this process has other threads
            self.candidates.append(Processes(make, workers, threads))
        if workers > 1:
            self.candidates.append(Threads(make, workers, threads))
        self.candidates.append(Loop(make))
        self.best: Executor = self.candidates[-1]
        self.speed: dict[str, float] = {}
        self.rounds, self.on_choice = 0, on_choice
        if len(self.candidates) == 1:
            self._settle()

    @property
    def name(self) -> str:
        """The executor that is fastest so far."""
        return self.best.name

    @property
    def workers(self) -> int:
        """Clients that it trains at a time."""
        return self.best.workers

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """Train with the next candidate, or with the one that was chosen."""
        if len(self.candidates) == 1:
            yield from self.best.train(tasks)
            return
        executor = self.candidates[self.rounds % len(self.candidates)]
        samples, start = 0, time.perf_counter()
        for answer in executor.train(tasks):
            samples += sum(answer.cost_by_phase.values()) if isinstance(answer, Reply) else 0
            yield answer
        speed = samples / max(time.perf_counter() - start, 1e-9)
        self.speed[executor.name] = max(speed, self.speed.get(executor.name, 0.0))
        self.best = max((c for c in self.candidates if c.name in self.speed), key=lambda c: self.speed[c.name])
        self.rounds += 1
        if self.rounds == PASSES * len(self.candidates):
            self._settle()

    def _settle(self) -> None:
        for candidate in self.candidates:
            if candidate is not self.best:
                candidate.close()
        self.candidates = [self.best]
        self.on_choice(self.best.name, self.best.workers, self.speed)

    def close(self) -> None:
        """Release what is left."""
        for candidate in self.candidates:
            candidate.close()
