"""Group single runs into one comparison: by method and settings, with the seeds as repetitions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstrata.analysis.comparison import Comparison, Entry
from fedstrata.common.errors import FedstrataError
from fedstrata.config.config import NON_RESULT_SETTINGS, Config
from fedstrata.data.statistics.facts import Facts, facts_of
from fedstrata.runs.result import Result, manifest

FEDERATION = ("data", "partition", "test", "validation", "heldout", "clients", "augment")
"""Settings that decide who holds what; runs that differ in them are not of one federation."""


def group_runs(results: Sequence[Result], facts: Facts | None = None) -> Comparison:
    """Group runs into a comparison.

    Runs with the same method and the same settings are one entry; a second run of it with the same seed is a
    separate entry, named after its folder. The first FedAvg is the baseline, or else the first entry.

    Args:
        results: at least one, finished or not.
        facts: of the federation; default those of the first run, read again, and where that cannot be done a note that
            says why.
    """
    configs = [_config(result) for result in results]
    shared = {key: value for key, value in configs[0].items() if all(config.get(key) == value for config in configs)}
    entries: dict[str, Entry] = {}
    grouped: dict[tuple[str, int], Result] = {}
    for result, config in zip(results, configs, strict=True):
        entry, seed = _entry(result, config, shared), _seed(result, config)
        if (entry.label, seed) in grouped:
            entry = replace(entry, label=_unused_label(f"{entry.label} ({result.name})", entries))
        entries.setdefault(entry.label, entry)
        grouped[entry.label, seed] = result
    facts = facts or _facts(results[0])
    return Comparison(
        entries=tuple(entries.values()),
        baseline=next((entry.label for entry in entries.values() if entry.method == "fedavg"), next(iter(entries))),
        seeds=tuple(sorted({seed for _, seed in grouped})),
        results=grouped,
        config={key: value for key, value in (shared if len(results) > 1 else configs[0]).items() if key != "seed"},
        facts=replace(facts, notes=(*facts.notes, *_difference_notes(configs))),
        command="\n".join(rerun_command(result.folder) for result in results if result.folder is not None),
        machine={str(name): str(value) for name, value in (_versions(results[0])).items()},
    )


def rerun_command(folder: Path) -> str:
    """Return the command that repeats the run of a folder, in a folder of another name."""
    return shlex.join(["fedstrata", "run", f"{folder}/config.toml", "name=auto"])


def _unused_label(label: str, entries: Mapping[str, Entry]) -> str:
    """Return a label that is not taken: folders in two places may have the same name."""
    place = 1
    candidate = label
    while candidate in entries:
        place, candidate = place + 1, f"{label}, {place + 1}"
    return candidate


def _config(result: Result) -> dict[str, Any]:
    config = manifest(result.folder).get("config") if result.folder is not None else None
    return dict(config) if isinstance(config, Mapping) else {}


def _versions(result: Result) -> Mapping[str, Any]:
    versions = manifest(result.folder).get("versions") if result.folder is not None else None
    return versions if isinstance(versions, Mapping) else {}


def _entry(result: Result, config: Mapping[str, Any], shared: Mapping[str, Any]) -> Entry:
    method = str(result.summary.get("method") or config.get("method") or result.name)
    differing = {
        key: value
        for key, value in config.items()
        if key not in shared and key not in NON_RESULT_SETTINGS and key not in ("method", "seed")
    }
    settings = ", ".join(f"{key}={'none' if value is None else value}" for key, value in differing.items())
    return Entry(f"{method} | {settings}" if settings else method, method, differing)


def _seed(result: Result, config: Mapping[str, Any]) -> int:
    seed = result.summary.get("seed", config.get("seed", 0))
    return seed if isinstance(seed, int) else 0


def _difference_notes(configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Write a note on runs of different federations."""
    keys = [key for key in FEDERATION if len({str(config.get(key)) for config in configs if config}) > 1]
    if not keys:
        return ()
    return (
        (
            f"The runs differ in {', '.join(keys)}: they belong to different federations, so their scores do not"
            " compare"
            " methods. The first run's federation is shown."
        ),
    )


def _facts(result: Result) -> Facts:
    """Read the federation of a run again."""
    if result.federation is not None:
        return facts_of(result.federation)
    if result.folder is None:
        return _unknown_facts(result, "the run keeps nothing")
    if "federation" in manifest(result.folder).get("custom", ()):
        return _unknown_facts(result, "the run was given a federation from Python")
    try:
        return facts_of(Config.read(result.folder / "config.toml").federation())
    except FedstrataError as error:
        return _unknown_facts(result, str(error))


def _unknown_facts(result: Result, why: str) -> Facts:
    """Return what is known without the data: whether there are classes."""
    errors = any((row.get("metrics") or {}).get("rmse") is not None for row in result.rounds)
    name = str(_config(result).get("data") or result.name)
    note = f"The federation is not described: {why.rstrip('.')}."
    return Facts(name, "regression" if errors else "classification", (), 0, 0, "", 0, 0, 0, None, notes=(note,))
