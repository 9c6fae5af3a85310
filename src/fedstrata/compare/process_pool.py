"""Make runs side by side in worker processes; one that dies is retried once, from its checkpoint.

The others go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fedstrata.compare.job import Id, Job, Notify, Outcome
from fedstrata.compare.resources import Resources

TRIES = 2  # of a run whose process dies
TICK = 0.2  # seconds between looks at the clock and at Ctrl-C
GRACE = 5.0  # seconds that a child has to leave


class WorkerProcess:
    """Wraps a worker process and its job."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(  # our own interpreter  # noqa: S603
                [sys.executable, "-m", "fedstrata.compare.process_worker", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.job: Job | None = None
        self.peak = 0
        self._rest = b""

    def give(self, job: Job, executor: str, workers: int, together: int) -> None:
        """Send a job; a process that has ended is noticed by the end of its output."""
        self.job = job
        order = {
            "job": f"{job.seed} {job.label}",
            "config": dict(job.config),
            "folder": str(job.folder),
            "key": job.key,
            "until": job.until,
        }
        order |= {"data": job.data, "code": job.code}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(
                json.dumps(order | {"executor": executor, "workers": workers, "together": together}).encode() + b"\n"
            )
            self.process.stdin.flush()
        except OSError:
            return

    def read(self) -> list[dict[str, Any]] | None:
        """Read the lines that have arrived; None at the end of the output."""
        assert self.process.stdout is not None
        more = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + more).split(b"\n")
        return [json.loads(line) for line in lines] if more else None

    def ask_to_stop(self) -> None:
        """Ask the process to end after its round."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def end(self, grace: float = 0.0) -> int:
        """Let the process end, or kill it; return its exit status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):  # it was gone before it had read all
            self.process.stdin.close()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.stdout.close()
        return self.process.wait()


class ProcessPool:
    """Runs jobs in worker processes until the pool is closed.

    Args:
        room: how many at a time.
        log: file for what children print beside their lines.
        notify: receives every event of every job.
        stop: asked often; True lets all runs stop after their round.
        tick: called often, for whoever draws.
    """

    def __init__(
        self,
        resources: Resources,
        log: Path,
        notify: Notify,
        stop: Callable[[], bool],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.resources, self.log, self.notify, self.stop, self.tick = resources, log, notify, stop, tick
        self.workers: list[WorkerProcess] = []
        self.started = 0
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in self.workers:
            worker.end(GRACE if kind is None else 0.0)
        self.selector.close()

    def run(self, jobs: Sequence[Job]) -> dict[Id, Outcome]:
        """Run all jobs to their ends; after a stop, jobs that were not begun are "stopped" as well."""
        waiting, outcomes = deque(jobs), dict[Id, Outcome]()
        tries: dict[Id, int] = {}
        stopping = False
        while waiting or any(worker.job for worker in self.workers):
            if self.stop():
                outcomes |= {job.id: Outcome("stopped") for job in waiting}
                waiting.clear()
                if not stopping:
                    for worker in self.workers:
                        worker.ask_to_stop()
                stopping = True
            self._fill(waiting)
            for worker, message in self._messages():
                job = worker.job
                assert job is not None
                if message is None:
                    self._handle_exit(worker, job, waiting, tries, outcomes)
                elif (outcome := self._handle_message(worker, job, message)) is not None:
                    outcomes[job.id], worker.job = outcome, None
            self.tick()
        return outcomes

    def _fill(self, waiting: deque[Job]) -> None:
        """Give jobs to idle processes, and start processes, as far as cores and memory allow."""
        while waiting:
            busy = [worker for worker in self.workers if worker.job is not None]
            if len(busy) >= self.resources.slots or not self.resources.fits([worker.peak for worker in busy]):
                return
            worker = next((w for w in self.workers if w.job is None), None) or self._start()
            left = len(waiting) + len(busy)
            worker.give(waiting.popleft(), *self.resources.executor_for(left), self.resources.together(left))

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(self.log)
        self.started += 1
        self.workers.append(worker)
        assert worker.process.stdout is not None, "a pipe was asked for"
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        return worker

    def _messages(self) -> Iterator[tuple[WorkerProcess, dict[str, Any] | None]]:
        """Read the messages of busy processes; None where one has died. An idle one that died is removed."""
        for key, _ in self.selector.select(TICK):
            worker: WorkerProcess = key.data
            lines = worker.read()
            if lines is None:
                self.selector.unregister(key.fileobj)
                self.workers.remove(worker)
                if worker.job is not None:
                    yield worker, None
                else:
                    worker.end()
            for line in lines or ():
                yield worker, line

    def _handle_message(self, worker: WorkerProcess, job: Job, message: Mapping[str, Any]) -> Outcome | None:
        worker.peak = max(worker.peak, int(message.get("peak", 0)))
        self.resources.needed = max(self.resources.needed, worker.peak)
        self.notify(job, message)
        if message["event"] in ("finished", "paused", "stopped", "failed"):
            return Outcome(message["event"], message.get("why", ""))
        return None

    def _handle_exit(
        self, worker: WorkerProcess, job: Job, waiting: deque[Job], tries: dict[Id, int], outcomes: dict[Id, Outcome]
    ) -> None:
        why = _reason(
            worker.end(GRACE)
        )  # its output ends a moment before it does: a kill now would be reported as the reason
        tries[job.id] = tries.get(job.id, 0) + 1
        if self.stop():
            outcomes[job.id] = Outcome("stopped")
        elif tries[job.id] < TRIES:
            self.notify(job, {"event": "again", "why": f"its process {why}; it continues from its checkpoint"})
            waiting.appendleft(job)
        else:
            outcomes[job.id] = Outcome("failed", f"its process {why}, {TRIES} times; what it printed is in {self.log}")
            self.notify(job, {"event": "failed", "why": outcomes[job.id].why})


def _reason(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was killed by {name}" + (" (out of memory?)" if -status == signal.SIGKILL else "")
