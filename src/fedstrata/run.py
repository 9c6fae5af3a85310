"""A run in a folder: configuration, lines of results, checkpoints, summary; and how an interrupted one goes on."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata import __version__
from fedstrata.build import Parts, assemble
from fedstrata.config import Config
from fedstrata.data.federation import Federation
from fedstrata.engine import Engine
from fedstrata.errors import FedstrataError, StateError
from fedstrata.events import Chosen, Finished, Observer, RoundDone, Started
from fedstrata.ledger import Bill
from fedstrata.params import Params
from fedstrata.report.result import Result
from fedstrata.server import Server
from fedstrata.state import Checkpoint, append_line, committed, load, lock, read_lines, save, sha256_of, truncate_lines
from fedstrata.state.disk import make_folder, sync_folder, write_file
from fedstrata.states import flatten_state, restore_state
from fedstrata.wire.frame import Size

ROUNDS, MANIFEST, SUMMARY, CHECKPOINTS = "rounds.jsonl", "manifest.json", "summary.json", "checkpoints"


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
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Train a federation from round 0 into a new run folder.

    Args:
        config: everything that is set.
        federation: instead of the configured data; a resume needs it again.
        module: instead of the configured model; a resume needs it again.
        observers: told what happens.
        stop: asked after every round; True ends the run, which can be resumed.
    Raises:
        FedstrataError: what cannot be meant, before anything is written.
        Stopped: ``stop`` said so.
    """
    parts = assemble(config, federation, module)
    folder = _new_folder(config)
    write_file(folder / "config.toml", [config.to_toml().encode()], "config")
    manifest = _manifest(parts, custom=[n for n, given in (("federation", federation), ("module", module)) if given is not None])
    write_file(folder / MANIFEST, [_json(manifest)], "run")
    sync_folder(folder)
    try:
        return _Run(parts, folder, observers, stop, config.executor, config.worker_count()).go(previous=None)
    except FedstrataError:
        _discard(folder)
        raise


def resume(
    folder: str | Path,
    *,
    previous: bool = False,
    executor: str | None = None,
    workers: int | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Continue a run from its last committed round to the model that an uninterrupted run would have reached, bit for bit.

    Args:
        folder: of the run.
        previous: continue from the checkpoint before the last one, where that is damaged.
        executor: instead of the one that the run had.
        workers: instead of those that the run had.
        federation: as in :func:`run`.
        module: as in :func:`run`.
        observers: as in :func:`run`.
        stop: as in :func:`run`.
    Raises:
        StateError: no run there, a damaged checkpoint, or a configuration, data set or code that is not this run's; nothing stored is changed.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    for name, given in (("federation", federation), ("module", module)):
        if name in manifest["custom"] and given is None:
            raise StateError(f"{folder} was run with a {name} of your own; give it again: fedstrata.resume({str(folder)!r}, {name}=...).")
    config = Config.read(folder / "config.toml")
    _same(config, manifest, folder)
    turn = _turn(config, executor, workers)
    parts = assemble(config, federation, module)
    now = _manifest(parts, custom=manifest["custom"])
    for key, meaning in (("fingerprint", "data or partition"), ("layout", "model")):
        if now[key] != manifest[key]:
            raise StateError(
                f"{folder}: the {meaning} is not what the run began with ({key} {now[key][:12]} now, {manifest[key][:12]} then); restore it."
            )
    notes = tuple(
        f"{k} was {manifest['versions'].get(k)} and is {v}: the result may differ in the last bits"
        for k, v in now["versions"].items()
        if v != manifest["versions"].get(k)
    )
    return _Run(parts, folder, observers, stop, turn.executor, turn.worker_count(), notes, asked=executor is not None).go(previous=previous)


class _Run:
    """One process's turn at a run."""

    def __init__(
        self,
        parts: Parts,
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
        self.notes = (*parts.federation.notes, *notes)
        self.rows: list[dict[str, Any]] = []

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
            engine = Engine(self.parts, self.executor, self.workers, lambda *choice: self.tell(Chosen(*choice)))
            stack.callback(engine.close)
            if kept is not None:
                self._restore(engine, kept, previous=bool(previous))
            self._started(engine)
            for row in engine.rounds():
                self._commit(engine, row)
                if self.stop is not None and self.stop() and engine.server.round < self.parts.config.rounds:
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
                p.federation.name,
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

    # ---- checkpoints --------------------------------------------------------------------------------------------------------------------

    def _kept(self, *, previous: bool | None) -> Checkpoint | None:
        """The executor that the run had chosen is kept, so that a resume measures nothing anew."""
        folder = self.folder / CHECKPOINTS
        if not committed(folder):  # killed before round 0 was committed
            truncate_lines(self.folder / ROUNDS, 0)
            return None
        checkpoint = load(folder, None, previous=bool(previous))
        if checkpoint.meta.get("run", self._identity()) != self._identity():
            raise StateError(f"{folder} holds the checkpoint of another run (other settings or data); put this run's own back, or start it anew.")
        if not self.asked and self.executor == "auto" and checkpoint.meta["executor"] is not None:
            self.executor, self.workers = checkpoint.meta["executor"], checkpoint.meta["workers"]
        return checkpoint

    def _identity(self) -> list[str]:
        return [self.parts.config.digest(), self.parts.federation.fingerprint]

    def _commit(self, engine: Engine, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.length = append_line(self.folder / ROUNDS, row)
        done, every = row["round"] + 1, self.parts.config.checkpoint.every
        if done % every == 0 or done == self.parts.config.rounds:
            self._save(engine)
        self.tell(RoundDone(row))

    def _save(self, engine: Engine) -> None:
        server, total = engine.server, engine.ledger.total
        if getattr(self, "saved", -1) == server.round - 1:
            return
        chosen = getattr(engine.executor, "candidates", None)
        settled = chosen is None or len(chosen) == 1
        meta = {
            "run": self._identity(),
            "lines": self.length,
            "seconds": engine.seconds,
            "bill": [total.up.payload, total.up.framing, total.down.payload, total.down.framing, total.flops],
            "costs": engine.ledger.costs,
            "lowest": engine.lowest,
            "executor": engine.executor.name if settled else None,
            "workers": engine.executor.workers if settled else None,
        }
        save(self.folder / CHECKPOINTS, Checkpoint(server.round - 1, _tensors(server), meta), engine.rows)
        self.saved = server.round - 1

    def _restore(self, engine: Engine, checkpoint: Checkpoint, *, previous: bool) -> None:
        load(self.folder / CHECKPOINTS, engine.rows)
        meta = checkpoint.meta
        truncate_lines(self.folder / ROUNDS, meta["lines"])
        self.rows = read_lines(self.folder / ROUNDS, meta["lines"]).rows
        self.length, self.saved = meta["lines"], checkpoint.round
        engine.server = _server(checkpoint, engine.server)
        engine.plan = engine.plan_now()
        engine.seconds, engine.lowest = meta["seconds"], meta["lowest"]
        up, up_framing, down, down_framing, flops = meta["bill"]
        engine.ledger.total = Bill(Size(up, up_framing), Size(down, down_framing), flops)
        engine.ledger.costs = dict(meta["costs"])

    # ---- the end ------------------------------------------------------------------------------------------------------------------------

    def _finish(self, engine: Engine) -> Result:
        if engine.by_client is None and self.parts.federation.own_test is not None:
            engine.evaluate(self.parts.config.rounds - 1)  # a resume of a finished run
        summary = summarise(self.parts, self.rows, engine)
        write_file(self.folder / SUMMARY, [_json(summary)], "summary")
        sync_folder(self.folder)
        clients = {i: {"personal": own, "shared": shared} for i, (own, shared, n) in (engine.by_client or {}).items() if n}
        result = Result(summary, self.rows, self.folder, clients, engine.server.params, self.notes, self.parts.federation)
        self.tell(Finished(summary, self.folder, self.notes))
        return result


def summarise(parts: Parts, rows: Sequence[Mapping[str, Any]], engine: Engine) -> dict[str, Any]:
    """What summary.json holds; null where a task has none."""
    scored = [r for r in rows if r.get("evaluated")]
    main = [(r["accuracy"] if parts.federation.test is not None else r["shared_on_clients"], r) for r in scored]
    main = [(a, r) for a, r in main if a is not None]
    last = scored[-1] if scored else {}
    classes = parts.federation.task.kind == "classification"
    curve = [a for a, _ in main] if classes else []
    chosen = [(r["validation"], -r["round"], a) for a, r in main if r["validation"] is not None]
    total = engine.ledger.total
    own = ("personal", "personal_weighted", "personal_std", "personal_worst10", "heldout")
    accuracy = {
        "final": curve[-1] if curve else None,
        "best": max(curve) if curve else None,
        "window": sum(curve[-max(1, len(curve) // 10) :]) / max(1, len(curve) // 10) if curve else None,
        "selected": max(chosen)[2] if chosen and classes else None,
    } | {key: last.get(key) if classes else None for key in own}
    metrics = dict(last.get("metrics") or {}) | {"shared_on_clients": last.get("shared_on_clients")}
    if not classes:
        metrics |= {key: last.get(key) for key in own}
    refused: dict[str, int] = {}
    for row in rows:
        for _, code, _ in row["refused"]:
            refused[code] = refused.get(code, 0) + 1
    return {
        "method": str(parts.method),
        "seed": parts.config.seed,
        "rounds": len(rows),
        "accuracy": accuracy,
        "metrics": metrics,
        "bytes_up": total.up.payload,
        "bytes_down": total.down.payload,
        "framing_up": total.up.framing,
        "framing_down": total.down.framing,
        "flops": total.flops,
        "seconds": engine.seconds,
        "eval_seconds": sum(r.get("eval_seconds") or 0.0 for r in rows),
        "executor": engine.executor.name,
        "workers": engine.executor.workers,
        "refused": refused,
        "rounds_without_update": sum(not r["moved"] for r in rows),
        "norms_of": engine.norms_of,
        "bn": parts.config.bn if len(parts.setup.layout.statistics.names) else None,
        "model_sha256": fingerprint(engine.server.params),
    }


def fingerprint(params: Params) -> str:
    """SHA-256 over parameters, then statistics, in layout order, little-endian."""
    assert params.buffers is not None
    return sha256_of([*params.views.values(), *params.buffers.views.values()])


def _tensors(server: Server) -> dict[str, Tensor]:
    assert server.params.buffers is not None
    found = {"params": server.params.flat, "statistics": server.params.buffers.flat}
    for piece, slot in server.slots.items():
        for name, value in flatten_state(slot).items():
            found[f"slot/{piece}/{name}"] = value.flat if isinstance(value, Params) else value
    return found


def _server(checkpoint: Checkpoint, template: Server) -> Server:
    tensors = checkpoint.tensors
    assert template.params.buffers is not None
    params = Params(tensors["params"], template.params.spec, buffers=Params(tensors["statistics"], template.params.buffers.spec))
    slots = {}
    for piece, slot in template.slots.items():
        found: dict[str, Params | Tensor] = {}
        for name, value in flatten_state(slot).items():
            tensor = tensors[f"slot/{piece}/{name}"]
            found[name] = Params(tensor, value.spec) if isinstance(value, Params) else tensor
        slots[piece] = restore_state(found)
    return Server(checkpoint.round + 1, params, slots)


# ---- the folder -----------------------------------------------------------------------------------------------------------------------------


def _new_folder(config: Config) -> Path:
    out = Path(config.out)
    if config.name != "auto":
        folder = out / config.name
        if folder.exists():
            raise StateError(f"{folder} exists; go on with it by `fedstrata resume {folder}`, or choose another name.")
        make_folder(folder)
        return folder
    stem = re.sub(r"[^A-Za-z0-9]+", "-", f"{config.data}-{config.method}").strip("-")[:60].strip("-")
    stem = f"{stem}-s{config.seed}-{config.digest()[:8]}"
    for number in range(1, 10_000):
        folder = out / (stem if number == 1 else f"{stem}-{number}")
        if not folder.exists():
            make_folder(folder)
            return folder
    raise StateError(f"{out} holds 9,999 runs of this configuration; remove some, or set name.")


def _discard(folder: Path) -> None:
    """Take away the folder of a run that was refused before its first round was written."""
    if {path.name for path in folder.iterdir()} <= {"config.toml", MANIFEST, ".lock"}:
        shutil.rmtree(folder)


def _manifest(parts: Parts, custom: Sequence[str]) -> dict[str, Any]:
    layout = parts.setup.layout
    shape = json.dumps([[e.name, list(e.shape), e.group, e.kind] for e in layout.entries.values()])
    return {
        "fedstrata": __version__,
        "versions": {
            "fedstrata": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
        "config": parts.config.flat(),
        "digest": parts.config.digest(),
        "fingerprint": parts.federation.fingerprint,
        "layout": sha256_of([torch.frombuffer(bytearray(shape.encode()), dtype=torch.uint8)]),
        "method": str(parts.method),
        "seed": parts.config.seed,
        "parameters": parts.parameters,
        "custom": list(custom),
    }


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).is_file():
        raise StateError(f"{folder} is no run folder: it has no {MANIFEST}. `fedstrata run` prints the folder of a run.")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        _ = manifest["config"], manifest["digest"], manifest["custom"], manifest["fingerprint"], manifest["layout"], manifest["versions"]
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{folder / MANIFEST} is damaged ({error}); the run cannot be identified. Start it anew.") from error
    return dict(manifest)


def _turn(config: Config, executor: str | None, workers: int | None) -> Config:
    """The configuration with who trains from here on, checked like any other."""
    given: dict[str, Any] = {} if executor is None else {"executor": executor}
    if executor == "loop":
        given["workers"] = "auto"  # the run's own may be several
    if workers is not None:
        given["workers"] = workers
    return config.replace(**given) if given else config


def _same(config: Config, manifest: Mapping[str, Any], folder: Path) -> None:
    if config.digest() == manifest["digest"]:
        return
    flat = json.loads(json.dumps(config.flat()))
    differing = [f"{k}: {v!r} now, {manifest['config'].get(k)!r} then" for k, v in flat.items() if v != manifest["config"].get(k)]
    raise StateError(f"{folder / 'config.toml'} is not the configuration of this run: {'; '.join(differing[:5])}. Restore it, or start another run.")


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
