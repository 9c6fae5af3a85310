"""Make runs in this process, one by one: for data, models and pieces from Python, and for observers."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedstrata.common.errors import FedstrataError, StateError
from fedstrata.common.events import Event, RoundDone, Started
from fedstrata.compare import run_cache
from fedstrata.compare.federation_cache import FederationCache
from fedstrata.compare.job import Id, Job, Notify, Outcome, reason
from fedstrata.compare.request import ComparisonRequest, Observers
from fedstrata.config.config import Config
from fedstrata.engine.assembly import RunComponents
from fedstrata.report.files import write_clients
from fedstrata.runs.result import Result
from fedstrata.runs.run import Stopped, resume, run


def external_digest(request: ComparisonRequest, parts: RunComponents, *, from_python: bool) -> str | None:
    """Return a digest of the code of a run that is not ours: source and settings of the pieces.

    None where nothing does, as for a module.
    """
    if request.python_inputs.module is not None:
        return None
    source = run_cache.plugin_digest(parts.config, parts.method, parts.measures.values())
    if source is None or not from_python:
        return source
    if not all(_plain(getattr(piece, f.name)) for piece in parts.method.pieces for f in fields(piece)):
        return None
    return hashlib.sha256(f"{source} {parts.method.pieces!r}".encode()).hexdigest()


def _plain(value: object) -> bool:
    """Return whether the text of a value describes it fully."""
    if isinstance(value, tuple | frozenset):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)


class InProcessRunner:
    """Makes runs in this process.

    Args:
        request: whose runs; it holds pieces, data and model.
        notify: receives every event, as from the processes of a pool.
        stop: asked after every round.
        observers: of every run.
        tick: called after every round.
        log: file for where a piece failed.
    """

    def __init__(
        self,
        request: ComparisonRequest,
        notify: Notify,
        stop: Callable[[], bool],
        observers: Observers,
        tick: Callable[[], None],
        log: Path,
    ) -> None:
        self.request, self.notify, self.stop, self.observers, self.tick, self.log = (
            request,
            notify,
            stop,
            observers,
            tick,
            log,
        )
        self.observer_error: Exception | None = None  # of an observer: it ends the comparison
        self.federations = FederationCache()
        self.done = 0
        self.paused: set[Id] = set()

    def run(self, jobs: Sequence[Job]) -> dict[Id, Outcome]:
        """Run all jobs to their ends, in order; after a stop, jobs that were not begun are "stopped" as well."""
        outcomes: dict[Id, Outcome] = {}
        for job in jobs:
            outcomes[job.id] = Outcome("stopped") if self.stop() else self._one(job)
            event: dict[str, Any] = {"event": outcomes[job.id].state, "why": outcomes[job.id].why}
            self.notify(job, event)
            self.tick()
        return outcomes

    def _one(self, job: Job) -> Outcome:
        try:
            with run_cache.hold_folder(job.folder) if job.key is not None else nullcontext():
                self._make(job)
        except Stopped:
            self.paused.add(job.id)
            return Outcome("stopped" if self.stop() else "paused")
        except FedstrataError as error:
            return Outcome("failed", str(error))
        except Exception as error:
            if error is self.observer_error:
                raise
            with self.log.open("a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
            return Outcome(
                "failed", reason(error)
            )  # a piece of the user's own may raise anything; the other runs go on
        return Outcome("finished")

    def _make(self, job: Job) -> None:
        begun = job.id in self.paused  # nothing but this process knows a run that is not cached
        if job.key is not None:
            cached = run_cache.inspect_run(job.folder, job.key)
            if cached.state == "finished":
                return
            begun = cached.state == "begun"
            if cached.state == "damaged":
                self._aside(job, cached.why)
        result = self._train(job, begun=begun)
        assert result.federation is not None
        write_clients(result, result.federation, job.folder)
        if job.key is not None:
            run_cache.seal(job.folder, job.key)

    def _train(self, job: Job, *, begun: bool) -> Result:
        competitor = next(r for r in self.request.competitors if r.entry.label == job.label)
        inputs = self.request.python_inputs
        given: dict[str, Any] = {
            "module": inputs.module,
            "method": competitor.method if competitor.from_python else None,
        }
        more: dict[str, Any] = {
            "observers": tuple(map(self._guarded, (*self.observers, self._watch(job)))),
            "stop": self._pause(job),
        }
        self.done = 0
        if begun:
            try:
                return resume(job.folder, federation=inputs.federation, **given, **more)
            except StateError as error:
                if self.done or run_cache.is_locked(error):
                    raise
                self._aside(job, str(error).rstrip("."))
        config = Config(**job.config)
        if inputs.federation is not None:
            return run(config, federation=inputs.federation, **given, **more)
        return run(self.federations.with_federation(config, job.data), **given, **more)

    def _aside(self, job: Job, why: str) -> None:
        self.notify(job, {"event": "aside", "why": why, "place": str(run_cache.set_aside(job.folder))})

    def _pause(self, job: Job) -> Callable[[], bool]:
        return lambda: self.stop() or (job.until is not None and self.done >= job.until)

    def _guarded(self, observer: Callable[[Event], None]) -> Callable[[Event], None]:
        """Wrap an observer: its exceptions are kept apart from those of pieces."""

        def guarded(event: Event) -> None:
            try:
                observer(event)
            except Exception as error:
                self.observer_error = error
                raise

        return guarded

    def _watch(self, job: Job) -> Callable[[Event], None]:
        def watch(event: Event) -> None:
            if isinstance(event, Started):
                self.done = event.first
                self.notify(job, {"event": "started", "first": event.first, "rounds": event.rounds})
            elif isinstance(event, RoundDone):
                self.done = int(event.row["round"]) + 1
                self.notify(job, round_event(event.row))
                self.tick()

        return watch


def round_event(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the board shows of a round."""
    shown = {key: row.get(key) for key in ("accuracy", "personal", "validation", "seconds", "eval_seconds")}
    return {"event": "round", "done": int(row["round"]) + 1, **shown}
