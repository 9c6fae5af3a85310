"""A run in a folder: configuration, lines of results, checkpoints, summary; and how an interrupted one goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedstrata.common.errors import FedstrataError, StateError
from fedstrata.common.events import ExecutorChosen, Finished, Observer, RoundDone, Started
from fedstrata.config.config import Config
from fedstrata.core.chain import Method
from fedstrata.core.params import Model
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import RunComponents, assemble
from fedstrata.engine.rounds import Engine
from fedstrata.runs.folder import as_json, discard, manifest_of, new_folder, read_manifest
from fedstrata.runs.restore import CHECKPOINTS, SUMMARY, identity, recalled, refuse_another, take_up, tensors_of
from fedstrata.runs.result import Result
from fedstrata.runs.summary import summarise
from fedstrata.runs.version import MANIFEST
from fedstrata.storage import (
    Checkpoint,
    append_line,
    committed,
    container,
    load,
    lock,
    read_lines,
    save,
    truncate_lines,
)
from fedstrata.storage.atomic_files import sync_folder, write_file
from fedstrata.trackers import tracking

ROUNDS, MODEL = "rounds.jsonl", "model.safetensors"


class Stopped(Exception):  # noqa: N818  # not an error: somebody asked for it
    """The run was asked to stop; everything up to the last round is kept.

    Attributes:
        folder: of the run, to be resumed.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(f"stopped; go on with: fedstrata resume {folder}")
        self.folder = folder


def run(
    config: Config,
    *,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Method | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Train a federation from round 0 into a new run folder.

    Args:
        config: everything that is set.
        federation: instead of the configured data; a resume needs it again.
        module: instead of the configured model; a resume needs it again.
        method: pieces that are not registered, instead of the configured method; a resume needs them again.
        observers: receive events.
        stop: asked after every round; True ends the run, which can be resumed.
    Raises:
        FedstrataError: invalid settings, before anything is written.
        Stopped: ``stop`` said so.
    """
    parts = assemble(config, federation, module, method)
    given = {"federation": federation, "module": module, "method": method}
    with tracking(config.track) as trackers:
        manifest = manifest_of(parts, custom=[name for name, value in given.items() if value is not None])
        folder = new_folder(config, config.data if federation is None else federation.name)
        write_file(folder / "config.toml", [config.to_toml().encode()], "config")
        write_file(folder / MANIFEST, [as_json(manifest)], "run")
        sync_folder(folder)
        try:
            return _Run(parts, folder, (*observers, *trackers), stop, config.executor, config.worker_count()).go(
                previous=None
            )
        except FedstrataError:
            discard(folder)
            raise


def resume(
    folder: str | Path,
    *,
    previous: bool = False,
    executor: str | None = None,
    workers: int | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Method | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Continue a run from its last committed round to the model that an uninterrupted run reaches, bit for bit.

    On another kind of processor the model may differ in last bits; a note says so.

    Args:
        folder: of the run.
        previous: continue from the checkpoint before the last one, where that is damaged.
        executor: instead of the one that the run had.
        workers: instead of those that the run had.
        federation: as in :func:`run`.
        module: as in :func:`run`.
        method: as in :func:`run`.
        observers: as in :func:`run`.
        stop: as in :func:`run`.
    Raises:
        StateError: no run there, a damaged checkpoint, or a configuration, data set or code that is not this run's;
            nothing stored is changed.
    """
    folder = Path(folder)
    parts, notes = recalled(folder, federation=federation, module=module, method=method)
    turn = _turn(parts.config, executor, workers)
    with tracking(parts.config.track) as trackers:
        told: tuple[Observer, ...] = (*observers, *trackers)
        return _Run(
            parts, folder, told, stop, turn.executor, turn.worker_count(), notes, asked=executor is not None
        ).go(previous=previous)


def _unscored(parts: RunComponents) -> tuple[str, ...]:
    out = parts.federation.heldout
    if not out or parts.federation.own_test is not None:
        return ()
    return (
        (
            f"{len(out)} clients are held out of training and, as only the server tests, scored nowhere; use test=both"
            " or test=client."
        ),
    )


class _Run:
    """One process's turn at a run."""

    def __init__(
        self,
        parts: RunComponents,
        folder: Path,
        observers: Sequence[Observer],
        stop: Callable[[], bool] | None,
        executor: str,
        workers: int,
        notes: tuple[str, ...] = (),
        *,
        asked: bool = False,
    ) -> None:
        self.parts, self.folder, self.observers, self.stop = parts, folder, observers, stop
        self.executor, self.workers, self.asked = executor, workers, asked
        self.notes = (*parts.federation.notes, *parts.method.notes(parts.setup), *_unscored(parts), *notes)
        self.rows: list[dict[str, Any]] = []
        self.length, self.digest = 0, hashlib.sha256()

    def tell(self, event: Any) -> None:
        """All observers, in order."""
        for observer in self.observers:
            observer(event)

    def go(self, *, previous: bool | None) -> Result:
        """Run to the end, from round 0 (None) or from a checkpoint."""
        threads = torch.get_num_threads()
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, threads)
            stack.enter_context(lock(self.folder))
            kept = self._kept(previous=previous) if previous is not None else None
            engine = Engine(self.parts, self.executor, self.workers, lambda *choice: self.tell(ExecutorChosen(*choice)))
            stack.callback(engine.close)
            if kept is not None:
                self._restore(engine, kept, previous=bool(previous))
            self._started(engine)
            for row in engine.rounds():
                self._commit(engine, row)
                if self.stop is not None and self.stop() and not engine.over:
                    self._save(engine)
                    raise Stopped(self.folder)
            return self._finish(engine)

    def _started(self, engine: Engine) -> None:
        c, p = self.parts.config, self.parts
        model = c.model_for(p.federation.task)
        law = p.federation.partition.law
        setup = p.setup
        self.tell(
            Started(
                self.folder,
                str(p.method),
                p.federation.name if "federation" in read_manifest(self.folder)["custom"] else c.data,
                model,
                str(law),
                setup.clients,
                setup.cohort,
                c.rounds,
                p.parameters,
                self.executor,
                self.workers,
                engine.server.round,
                self.notes,
            )
        )

    # ---- checkpoints

    def _kept(self, *, previous: bool | None) -> Checkpoint | None:
        """The executor that the run had chosen is kept, so that a resume measures nothing anew."""
        folder = self.folder / CHECKPOINTS
        if not committed(folder):  # killed before round 0 was committed
            truncate_lines(self.folder / ROUNDS, 0)
            return None
        checkpoint = load(folder, None, previous=bool(previous))
        refuse_another(checkpoint, self.parts, folder)
        if not self.asked and self.executor == "auto" and checkpoint.meta["executor"] is not None:
            self.executor, self.workers = checkpoint.meta["executor"], checkpoint.meta["workers"]
        return checkpoint

    def _commit(self, engine: Engine, row: dict[str, Any]) -> None:
        self.rows.append(row)
        before, self.length = self.length, append_line(self.folder / ROUNDS, row)
        with (self.folder / ROUNDS).open("rb") as file:
            file.seek(before)
            self.digest.update(file.read(self.length - before))
        done, every = row["round"] + 1, self.parts.config.checkpoint.every
        if done % every == 0 or engine.over:
            self._save(engine)
        self.tell(RoundDone(row))

    def _save(self, engine: Engine) -> None:
        server, total = engine.server, engine.ledger.total
        if getattr(self, "saved", -1) == server.round - 1:
            return
        chosen = getattr(engine.executor, "candidates", None)
        settled = chosen is None or len(chosen) == 1
        meta = {
            "run": identity(self.parts),
            "lines": self.length,
            "lines_sha256": self.digest.hexdigest(),
            "seconds": engine.seconds,
            "cost": [total.up.payload, total.up.framing, total.down.payload, total.down.framing, total.flops],
            "costs": engine.ledger.costs,
            "lowest": engine.lowest,
            "stopped_by": engine.stopped_by,
            "executor": engine.executor.name if settled else None,
            "workers": engine.executor.workers if settled else None,
        }
        save(self.folder / CHECKPOINTS, Checkpoint(server.round - 1, tensors_of(server), meta), engine.states)
        self.saved = server.round - 1

    def _restore(self, engine: Engine, checkpoint: Checkpoint, *, previous: bool) -> None:
        load(self.folder / CHECKPOINTS, engine.states)
        meta = checkpoint.meta
        truncate_lines(self.folder / ROUNDS, meta["lines"])
        self.digest.update((self.folder / ROUNDS).read_bytes())
        if self.digest.hexdigest() != meta["lines_sha256"]:
            raise StateError(
                f"{self.folder / ROUNDS} is damaged: its committed lines are not those of the checkpoint. Restore the"
                " file, or start anew."
            )
        self.rows = read_lines(self.folder / ROUNDS, meta["lines"]).rows
        self.length, self.saved = meta["lines"], checkpoint.round
        take_up(engine, checkpoint)

    # ---- the end

    def _finish(self, engine: Engine) -> Result:
        if engine.by_client is None and self.parts.federation.own_test is not None:
            engine.serving.evaluate(engine.server.round - 1, last=True)  # a resume of a finished run
        summary = summarise(self.parts, self.rows, engine)
        write_file(self.folder / MODEL, _named(engine.server.model), "model")
        write_file(self.folder / SUMMARY, [as_json(summary)], "summary")
        sync_folder(self.folder)
        result = Result(
            summary,
            self.rows,
            self.folder,
            engine.by_client or {},
            engine.server.model,
            self.notes,
            self.parts.federation,
        )
        self.tell(Finished(summary, self.folder, self.notes))
        return result


def _named(model: Model) -> list[bytes | memoryview]:
    """The model by names, as a safetensors file: parameters and norm statistics."""
    tensors = {n: t.detach() for n, t in (model.views | model.statistics.views).items()}
    head, order, _ = container.head({n: (tuple(t.shape), t.dtype) for n, t in tensors.items()}, {})
    return [head, *(container.raw(tensors[n]) for n in order)]


# ---- the folder


def _turn(config: Config, executor: str | None, workers: int | None) -> Config:
    """The configuration with who trains from here on, checked like any other."""
    given: dict[str, Any] = {} if executor is None else {"executor": executor}
    if executor == "loop":
        given["workers"] = "auto"  # the run's own may be several
    if workers is not None:
        given["workers"] = workers
    return config.replace(**given) if given else config
