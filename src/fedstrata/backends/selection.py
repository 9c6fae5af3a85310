"""Which executor trains: as configured, or the fastest of the bit-equal ones, by measuring."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from fedstrata.backends.batched import Batched
from fedstrata.backends.loop import Loop
from fedstrata.backends.processes import Processes
from fedstrata.backends.protocol import Executor, WorkerMaker
from fedstrata.backends.threads import Threads
from fedstrata.client.update import ClientFailure, ClientTask
from fedstrata.core.piece import Reply

PASSES = 2  # rounds that each candidate is given; the better one counts
EXECUTORS: Mapping[str, str] = {
    "loop": "one client after the other in this process",
    "threads": "several clients at a time in threads; bit-equal to loop",
    "processes": "several clients at a time in forked processes with shared memory; bit-equal to loop",
    "batched": "clients stacked along an axis, for small models; equal to loop to 1e-6",
    "auto": "the fastest of loop, threads and processes on the first rounds of this run",
}


def build(
    name: str, make: WorkerMaker, workers: int, threads: int, chosen: Callable[[str, int, Mapping[str, float]], None]
) -> Executor:
    """An executor by name.

    Args:
        name: one of EXECUTORS.
        make: builds a worker's kit.
        workers: clients at a time.
        threads: intra-op threads of each.
        chosen: told (executor, workers, samples a second by candidate) once ``auto`` has chosen.
    """
    if name == "loop":
        return Loop(make)
    if name == "threads":
        return Threads(make, workers, threads)
    if name == "processes":
        return Processes(make, workers, threads)
    if name == "batched":
        return Batched(make, workers, threads)
    return Auto(make, workers, threads, chosen)


class Auto:
    """Gives each candidate the same number of rounds of the run itself, then keeps the fastest.

    Nothing is trained twice.
    """

    def __init__(
        self, make: WorkerMaker, workers: int, threads: int, chosen: Callable[[str, int, Mapping[str, float]], None]
    ) -> None:
        self.candidates: list[Executor] = []
        if workers > 1 and threads == 1 and sys.platform.startswith("linux"):
            self.candidates.append(
                Processes(make, workers, threads)
            )  # forked first, before this process has threads of its own
        if workers > 1:
            self.candidates.append(Threads(make, workers, threads))
        self.candidates.append(Loop(make))
        self.best: Executor = self.candidates[-1]
        self.speed: dict[str, float] = {}
        self.turn, self.chosen = 0, chosen
        if len(self.candidates) == 1:
            self._settle()

    @property
    def name(self) -> str:
        """Of the executor that is fastest so far."""
        return self.best.name

    @property
    def workers(self) -> int:
        """Of that executor."""
        return self.best.workers

    def train(self, works: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """By the candidate whose turn it is, or by the one chosen."""
        if len(self.candidates) == 1:
            yield from self.best.train(works)
            return
        executor = self.candidates[self.turn % len(self.candidates)]
        samples, start = 0, time.perf_counter()
        for answer in executor.train(works):
            samples += sum(answer.passes.values()) if isinstance(answer, Reply) else 0
            yield answer
        speed = samples / max(time.perf_counter() - start, 1e-9)
        self.speed[executor.name] = max(speed, self.speed.get(executor.name, 0.0))
        self.best = max((c for c in self.candidates if c.name in self.speed), key=lambda c: self.speed[c.name])
        self.turn += 1
        if self.turn == PASSES * len(self.candidates):
            self._settle()

    def _settle(self) -> None:
        for candidate in self.candidates:
            if candidate is not self.best:
                candidate.close()
        self.candidates = [self.best]
        self.chosen(self.best.name, self.best.workers, self.speed)

    def close(self) -> None:
        """Release what is left."""
        for candidate in self.candidates:
            candidate.close()
