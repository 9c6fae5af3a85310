"""Write the files of a run folder that readers open: clients.csv, curve.png, partition.png."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.analysis.frames import flat
from fedstrata.report.figures import curve, partition
from fedstrata.runs.result import SCORE, Result, Scores
from fedstrata.storage.atomic_files import atomic

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation

LISTED = 10_000  # clients up to which every one gets a line, whether or not it took part


def write(result: Result, federation: Federation, folder: Path | None = None) -> list[Path]:
    """Write clients.csv, curve.png and partition.png.

    Args:
        result: of the run.
        federation: that it ran on.
        folder: where to; default the run folder. A run without a folder writes nothing.
    Returns:
        the files written.
    """
    folder = folder or result.folder
    if folder is None:
        return []
    listed = _listed(result, federation)
    files = [write_clients(result, federation, folder), curve([result], folder / "curve.png")]
    if listed is None or listed:
        files.append(partition(federation, folder / "partition.png", listed))
    return files


def write_clients(result: Result, federation: Federation, folder: Path) -> Path:
    """Write clients.csv: a line for every client; of very many, for those that took part or were scored."""
    listed = _listed(result, federation)
    return clients_csv(federation, folder / "clients.csv", listed, took_part=_times(result), scores=result.clients)


def _listed(result: Result, federation: Federation) -> list[int] | None:
    """List the clients that get a line; None is all."""
    if not federation.partition.lazy and federation.clients <= LISTED:
        return None
    return sorted(participation(result) | set(result.clients))


def participation(result: Result) -> set[int]:
    """Return the ids of the clients that were in some cohort."""
    return {int(client) for row in result.rounds for client in row.get("cohort", ())}


def _times(result: Result) -> dict[int, int]:
    times: dict[int, int] = {}
    for row in result.rounds:
        for client in row.get("cohort", ()):
            times[int(client)] = times.get(int(client), 0) + 1
    return times


def clients_csv(
    federation: Federation,
    path: Path,
    clients: Sequence[int] | None = None,
    *,
    took_part: Mapping[int, int] | None = None,
    scores: Mapping[int, Scores] | None = None,
) -> Path:
    """Write a line a client: samples by split, whether it is held out, its rounds, label counts and scores.

    A column ``name`` follows the number where clients have names (a client column, folders, writers).

    Args:
        federation: any.
        path: of the CSV file.
        clients: ids, in the order of the lines; None is all.
        took_part: rounds by client.
        scores: scores of the last evaluation by client; columns have the prefix "score_", and a missing value is an
            empty cell.
    """
    took_part, scores = took_part or {}, scores or {}
    ids = range(federation.clients) if clients is None else clients
    columns = sorted({name for client_scores in scores.values() for name in client_scores})
    labels = federation.task.labels if federation.task.has_classes else ()
    heldout = set(federation.heldout)
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    named = ["name"] if federation.named else []
    out.writerow(
        [
            "client",
            *named,
            "training",
            "validation",
            "test",
            "heldout",
            "rounds",
            *(f"label_{x}" for x in labels),
            *(SCORE + x for x in columns),
        ]
    )
    for client in ids:
        test = federation.testing(client)
        sizes = [
            len(federation.training(client)),
            len(federation.validating(client)),
            0 if test is None else len(test[1]),
        ]
        counts = federation.counts(client).tolist() if labels else []
        client_scores = scores.get(client, {})
        name = [federation.client_name(client)] if named else []
        out.writerow(
            [
                client,
                *name,
                *sizes,
                int(client in heldout),
                took_part.get(client, 0),
                *counts,
                *(_cell(client_scores.get(x)) for x in columns),
            ]
        )
    return _text(path, text.getvalue())


def rounds_csv(result: Result, path: Path) -> Path:
    """Write the rounds as a table; nested metrics become columns, lists become counts."""
    rows = [flat(_one_level(row)) for row in result.rounds]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    out = csv.DictWriter(text, columns, lineterminator="\n")
    out.writeheader()
    out.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return _text(path, text.getvalue())


def _one_level(row: Mapping[str, Any]) -> dict[str, Any]:
    """Drop lists and mappings inside nested mappings: this table has one column a score."""
    return {
        name: {key: item for key, item in value.items() if not isinstance(item, list | dict)}
        if isinstance(value, Mapping)
        else value
        for name, value in row.items()
    }


def _cell(value: Any) -> Any:
    return "" if value is None else value


def _text(path: Path, text: str) -> Path:
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path
