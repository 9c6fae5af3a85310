"""Study finished runs: what their models have become, layer by layer, and what their updates reveal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedstrata.common.errors import ConfigError
from fedstrata.inference.finished_run import open_run
from fedstrata.studies.base import Outcome, Study, finite, replay
from fedstrata.studies.outputs import writable_folder, write_outcome
from fedstrata.studies.registry import find, table

__all__ = ["Outcome", "Study", "find", "replay", "study", "table", "write_outcome"]


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
        what: a study by name, in call syntax, or as a value; ``fedstrata list studies`` prints the names.
        runs: run folders; each is labelled by the name of its folder.
        out: a folder for outcome.json, tables and figures; None writes nothing.
        root: the folder of the runs' data, if the data have moved.
        name: the name, in its files, of a study that is given as a value; default its class.
    Raises:
        ConfigError: an unknown study or setting, too few or too many runs, unsuitable runs, or an ``out`` that cannot
            be written to.
        StateError: no run in a folder, or one that is unfinished or damaged.
    """
    label, chosen = find(what) if isinstance(what, str) else (name or type(what).__name__.lower(), what)
    folders = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    labels = run_labels([str(folder) for folder in folders])
    chosen.check(labels)
    target = None if out is None else Path(out)
    if target is not None and target.exists() and not target.is_dir():
        raise ConfigError(f"out is {str(out)!r}, which is a file; name a folder.")
    for folder in folders:
        if target is not None and target.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"out is {str(out)!r}, inside the run {str(folder)!r}, and a study never changes a run; name another"
                " folder."
            )
    opened = {label: open_run(folder, root=root) for label, folder in zip(labels, folders, strict=True)}
    if target is None:
        return finite(chosen.study(opened))
    with writable_folder(target):
        outcome = finite(chosen.study(opened))
        write_outcome(outcome, label, chosen, _origins(folders, labels), target)
    return outcome


def run_labels(folders: Sequence[str]) -> list[str]:
    """Return the last parts of folder names, as many as distinguish them."""
    parts = [Path(folder).resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise ConfigError(f"a run is given twice among {', '.join(folders)}; name each once.")
    for count in range(1, max(map(len, parts), default=1) + 1):
        labels = ["/".join(p[-count:]) for p in parts]
        if len(set(labels)) == len(labels):
            return labels
    return list(folders)


def _origins(folders: Sequence[Path], labels: Sequence[str]) -> Mapping[str, str]:
    return {label: str(folder) for label, folder in zip(labels, folders, strict=True)}
