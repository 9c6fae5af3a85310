"""Which executor trains: the configured one, or the fastest of the bit-equal ones, by measuring."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from fedstrata.backends.batched import Batched
from fedstrata.backends.loop import Loop
from fedstrata.backends.processes import Processes
from fedstrata.backends.protocol import Executor, WorkerMaker
from fedstrata.backends.threads import Threads
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.common.call_syntax import bind, parse_call
from fedstrata.common.registry import Registry
from fedstrata.core.piece import Reply

PASSES = 2  # rounds that each candidate is given; the better one counts

OnChoice: TypeAlias = Callable[[str, int, Mapping[str, float]], None]


class ExecutorSettings(ABC):
    """The settings of an executor, a frozen dataclass; packages register theirs by ``fedstrata.executors``.

    Class attributes:
        summary: one line for lists.
    """

    summary: ClassVar[str] = ""

    @abstractmethod
    def start(self, make: WorkerMaker, workers: int, threads: int) -> Executor:
        """Start the executor.

        Args:
            make: builds a worker.
            workers: clients at a time.
            threads: intra-op threads of each.
        """


@dataclass(frozen=True)
class LoopSettings(ExecutorSettings):
    """Settings of ``loop``: none."""

    summary: ClassVar[str] = "one client after the other in this process"

    def start(self, make: WorkerMaker, workers: int, threads: int) -> Executor:
        """Start a loop."""
        return Loop(make)


@dataclass(frozen=True)
class ThreadsSettings(ExecutorSettings):
    """Settings of ``threads``: none."""

    summary: ClassVar[str] = "several clients at a time in threads; bit-equal to loop"

    def start(self, make: WorkerMaker, workers: int, threads: int) -> Executor:
        """Start a pool of threads."""
        return Threads(make, workers, threads)


@dataclass(frozen=True)
class ProcessesSettings(ExecutorSettings):
    """Settings of ``processes``: none."""

    summary: ClassVar[str] = "several clients at a time in forked processes with shared memory; bit-equal to loop"

    def start(self, make: WorkerMaker, workers: int, threads: int) -> Executor:
        """Fork a pool of processes."""
        return Processes(make, workers, threads)


@dataclass(frozen=True)
class BatchedSettings(ExecutorSettings):
    """Settings of ``batched``: none."""

    summary: ClassVar[str] = "clients stacked along an axis, for small models; equal to loop to 1e-6"

    def start(self, make: WorkerMaker, workers: int, threads: int) -> Executor:
        """Start threads that train stacks of clients."""
        return Batched(make, workers, threads)


AUTO = "auto"  # the fastest of loop, threads and processes on the first rounds of the run

EXECUTORS: Registry[type[ExecutorSettings]] = Registry(
    "executors",
    "executor",
    accepts=lambda offered: isinstance(offered, type) and issubclass(offered, ExecutorSettings),
    wanted="a subclass of fedstrata.backends.selection.ExecutorSettings",
    entries={
        "loop": LoopSettings,
        "threads": ThreadsSettings,
        "processes": ProcessesSettings,
        "batched": BatchedSettings,
    },
    reserved=(AUTO,),
)


def executor_settings(text: str) -> ExecutorSettings | None:
    """Return the settings of an executor from call syntax; None is ``auto``.

    Raises:
        ConfigError: an unknown executor or setting.
    """
    call = parse_call(text)
    return None if text == AUTO else bind(call, EXECUTORS.find(call.name), what="executor")


def build(text: str, make: WorkerMaker, workers: int, threads: int, on_choice: OnChoice) -> Executor:
    """Build an executor.

    Args:
        text: "auto", or a name of EXECUTORS in call syntax.
        make: builds a worker.
        workers: clients at a time.
        threads: intra-op threads of each.
        on_choice: called with (executor, workers, samples a second by candidate) once ``auto`` has chosen.
    """
    settings = executor_settings(text)
    if settings is None:
        return Auto(make, workers, threads, on_choice)
    return settings.start(make, workers, threads)


class Auto:
    """Give each candidate the same number of rounds of the run itself, then keep the fastest.

    Nothing is trained twice.
    """

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
