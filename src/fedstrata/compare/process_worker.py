"""Make runs for a comparison in a worker process: jobs arrive as JSON lines on stdin, events leave on stdout.

It serves one job after the other, so that PyTorch and the data are loaded once for many runs. SIGTERM ends the run at
hand after its round, with a checkpoint; so does the death of the process that started it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from fedstrata.common.allocator import keep_freed_blocks
from fedstrata.common.errors import FedstrataError, StateError
from fedstrata.common.events import Event, RoundDone, Started
from fedstrata.compare import run_cache
from fedstrata.compare.federation_cache import FederationCache, check_unchanged
from fedstrata.compare.job import reason
from fedstrata.config.config import Config
from fedstrata.report.files import write_clients
from fedstrata.runs.folder import discard
from fedstrata.runs.result import Result
from fedstrata.runs.run import Stopped, resume, run

PATIENCE = 0.5  # seconds between looks at a folder that another process holds


class StopSignal:
    """Decides whether to stop after the current round."""

    def __init__(self, parent: int) -> None:
        self.requested, self.parent = False, parent
        signal.signal(signal.SIGTERM, self._on)
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches all processes of a terminal; the parent says when to stop

    def _on(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def __call__(self) -> bool:
        """Return whether a stop was asked for, or the parent has ended."""
        return self.requested or os.getppid() != self.parent


class JobServer:
    """Makes the runs of jobs; ``out`` takes the event lines."""

    def __init__(self, out: TextIO, stop: StopSignal) -> None:
        self.out, self.stop, self.federations = out, stop, FederationCache()
        self.job: Mapping[str, Any] = {}
        self.done = 0
        self.began = False

    def notify(self, event: str, **more: Any) -> None:
        """Send one line to the parent; a parent that has ended is no failure, as the run still has to be kept."""
        try:
            print(
                json.dumps({"job": self.job["job"], "event": event, **more}, allow_nan=False), file=self.out, flush=True
            )
        except OSError:
            self.stop.requested = True

    def serve(self, job: Mapping[str, Any]) -> None:
        """Make or finish the run of a job, and report how it ended."""
        self.job, self.done, self.began = job, 0, False
        folder = Path(job["folder"])
        try:
            with _hold_folder(folder, self.notify, self.stop) as free:
                if not free:
                    self.notify("stopped")
                    return
                self._make(folder)
        except Stopped:
            self.notify("stopped" if self.stop() else "paused")
        except FedstrataError as error:
            self.notify("failed", why=str(error))
        except Exception as error:  # a piece of the user's own may raise anything; the other runs go on  # noqa: BLE001
            traceback.print_exc()
            self.notify("failed", why=reason(error))

    def _make(self, folder: Path) -> None:
        cached = run_cache.inspect_run(folder, self.job["key"])
        if cached.state == "finished":  # by another comparison, in the meantime
            self.notify("finished", peak=peak())
            return
        check_unchanged("code", self.job["code"], run_cache.code_version())
        if cached.state == "damaged":
            self._aside(folder, cached.why)
        self._seal(self._train(folder, begun=cached.state == "begun"))
        self.notify("finished", peak=peak())

    def _train(self, folder: Path, *, begun: bool) -> Result:
        if begun:
            try:
                return self._resume(folder)
            except StateError as error:
                if self.began or run_cache.is_locked(error):
                    raise
                self._aside(folder, str(error).rstrip("."))
        config = Config(**self.job["config"]).replace(**self._turn())
        return run(
            self.federations.with_federation(config, self.job["data"]), observers=(self._watch,), stop=self._pause
        )

    def _resume(self, folder: Path) -> Result:
        executor = self.job["executor"]
        workers = None if executor == "loop" else self.job["workers"]
        return resume(folder, executor=executor, workers=workers, observers=(self._watch,), stop=self._pause)

    def _turn(self) -> dict[str, Any]:
        executor = self.job["executor"]
        return {"executor": executor, "workers": "auto" if executor == "loop" else self.job["workers"]}

    def _aside(self, folder: Path, why: str) -> None:
        if {path.name for path in folder.iterdir()} <= {"config.toml", "config.toml.tmp", ".lock"}:
            discard(folder)  # killed before it had begun: nothing is lost
            if not folder.exists():
                return
        self.notify("aside", place=str(run_cache.set_aside(folder)), why=why)

    def _seal(self, result: Result) -> None:
        assert result.federation is not None
        assert result.folder is not None
        check_unchanged(
            "data", self.job["data"], result.federation.fingerprint
        )  # a run that was resumed read them itself
        write_clients(result, result.federation, result.folder)
        run_cache.seal(result.folder, self.job["key"], self.job["together"])

    def _pause(self) -> bool:
        until = self.job["until"]
        return self.stop() or (until is not None and self.done >= until)

    def _watch(self, event: Event) -> None:
        if isinstance(event, Started):
            self.began, self.done = True, event.first
            self.notify(
                "started", first=event.first, rounds=event.rounds, executor=event.executor, workers=event.workers
            )
        elif isinstance(event, RoundDone):
            self.done = int(event.row["round"]) + 1
            shown = {
                key: event.row.get(key) for key in ("accuracy", "personal", "validation", "seconds", "eval_seconds")
            }
            self.notify("round", done=self.done, pid=os.getpid(), peak=peak(), **shown)


@contextmanager
def _hold_folder(folder: Path, notify: Callable[..., None], stop: StopSignal) -> Iterator[bool]:
    """Lock the folder of a run, after waiting for other processes to leave it.

    False where it was asked to stop before.
    """
    reported = False
    with ExitStack() as stack:
        while not stop():
            try:
                stack.enter_context(run_cache.hold_folder(folder))
            except StateError as error:
                if not run_cache.is_locked(error):
                    raise
                if not reported:
                    notify("waiting", why=str(error).partition(". ")[0])
                reported = True
                time.sleep(PATIENCE)
                continue
            break
        yield not stop()


def peak() -> int:
    """Return the largest resident memory so far (bytes), of this process and the largest of its ended workers."""
    kilobytes = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    )
    return int(kilobytes) * (1 if sys.platform == "darwin" else 1024)


def main(parent: int) -> None:
    """Serve jobs until stdin ends."""
    keep_freed_blocks()
    run_cache.code_version()  # of what was just imported; it is kept
    stop = StopSignal(parent)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints does not get between the lines
    server = JobServer(out, stop)
    for line in sys.stdin:
        server.serve(json.loads(line))
        if stop():
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
