"""Small finished runs, and digests of their folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fedstrata.cli import main
from fedstrata.config.config import Config
from fedstrata.core.chain import chain
from fedstrata.engine.assembly import assemble
from fedstrata.engine.rounds import Engine
from fedstrata.report.files import clients_csv
from fedstrata.runs.run import run
from helpers import lab


def digest(folder: Path) -> dict[str, str]:
    """SHA-256 and time of change of every file of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(p.relative_to(folder)): f"{hashlib.sha256(p.read_bytes()).hexdigest()} {p.stat().st_mtime_ns}"
        for p in files
    }


def toy_run(folder: Path, method="fedavg", toy="layer", **settings):
    """(run folder, the same run's engine in memory, what was given from Python)."""
    data, module = lab.TOYS[toy]() if isinstance(toy, str) else toy
    own = None if isinstance(method, str) else chain(method)
    config = lab.config(
        method=str(method),
        **{"out": str(folder), "name": "run", "rounds": 2, "cohort": min(3, data.clients)} | settings,
    )
    run(config, federation=data, module=module, method=own)
    live = Engine(assemble(config, data, module, own), "loop", 1)
    list(live.rounds())
    given = {"federation": data, "module": module} | ({} if own is None else {"method": own})
    return folder / "run", live, given


def quick(folder: Path, **settings) -> Path:
    """The folder of a short run from a configuration."""
    known = {"out": str(folder), "name": "run", "rounds": 2, "cohort": 4, "executor": "loop", "local.epochs": 1}
    result = run(Config(**known | settings))
    clients_csv(result.federation, result.folder / "clients.csv", scores=result.clients)  # as the command writes it
    return result.folder


def command(*arguments) -> int:
    """Run the command in this process: its exit code."""
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    return left.value.code or 0
