"""Studies of finished runs: what a model has become, layer by layer, and what its updates give away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedstrata.common.errors import ConfigError
from fedstrata.inference.finished_run import open_run
from fedstrata.studies.base import Outcome, Study, finite, replay
from fedstrata.studies.outputs import place, written
from fedstrata.studies.registry import find, table

__all__ = ["Outcome", "Study", "find", "replay", "study", "table", "written"]


def study(
    what: str | Study,
    runs: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    root: str | Path | None = None,
    name: str | None = None,
) -> Outcome:
    """Study finished runs; their folders are only read.

    Args:
        what: a study by name, in call syntax, or as a value; ``fedstrata list studies`` prints them.
        runs: run folders; each is called by its own name.
        out: a folder for outcome.json, tables and pictures; None writes nothing.
        root: folder of the runs' data, where they are not where the runs had them.
        name: what a study that is given as a value is called in its files; default its class.
    Raises:
        ConfigError: an unknown study or setting, too few or many runs, runs that do not fit it, or an ``out`` that
            cannot be written to.
        StateError: no run there, one that is not finished or is damaged.
    """
    called, chosen = find(what) if isinstance(what, str) else (name or type(what).__name__.lower(), what)
    folders = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    labels = names([str(folder) for folder in folders])
    chosen.check(labels)
    where = None if out is None else Path(out)
    if where is not None and where.exists() and not where.is_dir():
        raise ConfigError(f"out is {str(out)!r}, which is a file; name a folder.")
    for folder in folders:
        if where is not None and where.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"out is {str(out)!r}, which lies in the run {str(folder)!r}, and runs are only read; name another"
                " folder."
            )
    opened = {label: open_run(folder, root=root) for label, folder in zip(labels, folders, strict=True)}
    if where is None:
        return finite(chosen.study(opened))
    with place(where):
        outcome = finite(chosen.study(opened))
        written(outcome, called, chosen, _origins(folders, labels), where)
    return outcome


def names(folders: Sequence[str]) -> list[str]:
    """Last parts of folder names, as many as tell them apart."""
    parts = [Path(folder).resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise ConfigError(f"a run is given twice among {', '.join(folders)}; name each once.")
    for count in range(1, max(map(len, parts), default=1) + 1):
        found = ["/".join(p[-count:]) for p in parts]
        if len(set(found)) == len(found):
            return found
    return list(folders)


def _origins(folders: Sequence[Path], labels: Sequence[str]) -> Mapping[str, str]:
    return {label: str(folder) for label, folder in zip(labels, folders, strict=True)}
