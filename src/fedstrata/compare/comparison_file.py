"""Write and read comparison.json: what was compared, and the folder of every run."""

from __future__ import annotations

import itertools
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from fedstrata._version import __version__
from fedstrata.analysis.comparison import Budget, Comparison, Entry, Screening
from fedstrata.common.errors import StateError, WireError
from fedstrata.common.units import size
from fedstrata.compare import run_cache
from fedstrata.compare.job import Id, Job
from fedstrata.compare.request import ComparisonRequest
from fedstrata.data.statistics.facts import Facts
from fedstrata.runs.folder import as_json
from fedstrata.runs.result import Result
from fedstrata.storage.atomic_files import make_folder, read_file, sync_folder, write_file
from fedstrata.storage.container import read_json

FILE = "comparison.json"
FORMAT = 2


def write(
    request: ComparisonRequest,
    runs: Mapping[Id, Job],
    facts: Facts,
    state: str,
    *,
    failures: Mapping[Id, str] | None = None,
    side_by_side: int = 1,
    screening: Screening | None = None,
) -> Path:
    """Write comparison.json in one step.

    Raises:
        StateError: the folder holds another comparison under this name, or cannot be written.
    """
    folder = request.folder
    make_folder(folder)
    record = {
        "format": FORMAT,
        "fedstrata": __version__,
        "digest": request.digest(),
        "state": state,
        "entries": [
            {"label": r.entry.label, "method": r.entry.method, "settings": dict(r.entry.settings)}
            for r in request.competitors
        ],
        "baseline": request.baseline,
        "seeds": list(request.seeds),
        "budget": None if request.budget is None else asdict(request.budget),
        "runs": [
            {"label": r.label, "seed": r.seed, "folder": os.path.relpath(r.folder, folder), "key": r.key}
            for r in runs.values()
        ],
        "failures": [{"label": label, "seed": seed, "why": why} for (label, seed), why in (failures or {}).items()],
        "screening": None if screening is None else asdict(screening),
        "side_by_side": side_by_side,
        "command": request.command,
        "machine": machine(),
        "config": request.config.flat(),
        "facts": facts.as_dict(),
    }
    write_file(folder / FILE, [as_json(record)], "comparison")
    sync_folder(folder)
    return folder / FILE


def refuse_another(request: ComparisonRequest) -> Path | None:
    """Refuse a name that another comparison uses.

    A record that cannot be read is renamed, and its new path is returned.
    """
    path = request.folder / FILE
    if not path.exists():
        return None
    try:
        record = _read(path)
    except WireError:  # a disk that does not answer is another error, and says nothing about the record
        return _set_aside(path)
    if not isinstance(record, dict) or not isinstance(record.get("digest"), str):
        return _set_aside(path)
    if record["digest"] != request.digest():
        raise StateError(
            f"{request.folder} holds another comparison (other methods, seeds or settings); choose another name, or"
            " remove it. Finished runs are in the cache and are not trained again."
        )
    return None


def _set_aside(path: Path) -> Path:
    target = next(p for n in itertools.count(1) if not (p := path.with_name(f"{path.name}.damaged-{n}")).exists())
    path.rename(target)
    sync_folder(path.parent)
    return target


def read(folder: str | Path) -> Comparison:
    """Read a comparison from its folder; of an unfinished one, the runs that are finished.

    Raises:
        StateError: no comparison there, files that are damaged, or finished runs that are gone.
    """
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise StateError(
            f"there is no comparison in {str(folder)!r}: it has no {FILE}. `fedstrata compare` prints the folder at its"
            " end."
        )
    record = _record(folder / FILE)
    try:
        _check_values(record)
        return _comparison(record, folder)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, StateError):
            raise
        why = error if isinstance(error, InvalidValuesError) else repr(error)
        raise StateError(
            f"{folder / FILE} is damaged ({why}); run the same `fedstrata compare` again; its runs are kept."
        ) from error


class InvalidValuesError(ValueError):
    """Signals values that no comparison has."""


def _check_values(record: Mapping[str, Any]) -> None:
    """Refuse values that would be reported wrongly.

    Raises:
        UnsoundError: in words.
    """
    wrong = [seed for seed in (*record["seeds"], *(run["seed"] for run in record["runs"])) if type(seed) is not int]
    if wrong:
        raise InvalidValuesError(f"seed {wrong[0]!r} is no whole number")
    labels = [entry["label"] for entry in record["entries"]]
    if record["baseline"] not in labels:
        raise InvalidValuesError(
            f"its baseline {record['baseline']!r} is none of its entries: {', '.join(map(str, labels))}"
        )


def _read(path: Path) -> Any:
    return read_json(bytes(read_file(path, limit=1 << 28)), depth=32)


def _record(path: Path) -> dict[str, Any]:
    try:
        record = _read(path)
    except WireError as error:
        raise StateError(
            f"{path} is damaged: {error} Run the same `fedstrata compare` again; its runs are kept."
        ) from error
    if not isinstance(record, dict):
        raise StateError(
            f"{path} is damaged: it holds no JSON object. Run the same `fedstrata compare` again; its runs are kept."
        )
    if record.get("format") != FORMAT:
        raise StateError(
            f"{path} has format {record.get('format')!r}, and this version of fedstrata reads {FORMAT}; run the"
            " comparison again."
        )
    return record


def _comparison(record: Mapping[str, Any], folder: Path) -> Comparison:
    results = {}
    for run in record["runs"]:
        path = Path(os.path.normpath(folder / run["folder"]))
        if (path / run_cache.SEAL).is_file() or (run["key"] is None and (path / "summary.json").is_file()):
            results[run["label"], run["seed"]] = Result.read(path)
    screening = record["screening"]
    if record["state"] == "finished":
        known = {(f["label"], f["seed"]) for f in record["failures"]} | results.keys()
        dropped = () if screening is None else screening["dropped"]
        _refuse_gone(
            folder,
            [run for run in record["runs"] if (run["label"], run["seed"]) not in known and run["label"] not in dropped],
        )
    return Comparison(
        entries=tuple(Entry(e["label"], e["method"], dict(e["settings"])) for e in record["entries"]),
        baseline=record["baseline"],
        seeds=tuple(record["seeds"]),
        results=results,
        config=dict(record["config"]),
        facts=Facts.read(record["facts"]),
        failures={(f["label"], f["seed"]): f["why"] for f in record["failures"]},
        command=record["command"],
        machine=dict(record["machine"]),
        side_by_side=record["side_by_side"],
        budget=None if record["budget"] is None else Budget(**record["budget"]),
        screening=None if screening is None else _screening(screening),
        folder=folder,
    )


def _refuse_gone(folder: Path, missing: list[Any]) -> None:
    if missing:
        raise StateError(
            f"{len(missing)} finished runs of {folder} are missing (the first was in"
            f" {os.path.normpath(folder / missing[0]['folder'])}); put the cache back beside the comparison, or call"
            " the"
            " same `fedstrata compare` again."
        )


def _screening(record: Mapping[str, Any]) -> Screening:
    lists = {name: tuple(record[name]) for name in ("rungs", "audited", "wrongly")}
    return Screening(
        **lists, dropped=dict(record["dropped"]), share=record["share"], low=record["low"], high=record["high"]
    )


def machine() -> dict[str, str]:
    """Describe processor, cores, memory and versions for a report."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count() or 1),
        "memory": size(psutil.virtual_memory().total),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "fedstrata": __version__,
        "code": run_cache.code_version()[:12],
    }


def _processor() -> str:
    try:
        match = re.search(
            r"^model name\s*:\s*(.+)$",
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"),
            re.MULTILINE,
        )
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()
