"""Write the tables of a comparison as files; programs may rely on the column names, new columns follow at the end.

table.csv, a row a method
    label, method, baseline, informative, own_models (clients use personal models), shared_unused (no client uses the
    shared model); for each score (selected, window, final, best, personal, personal_selected, heldout, rmse, ...)
    SCORE_mean, SCORE_std (n - 1), SCORE_n (seeds); the same for each cost: bytes_up, bytes_down, bytes (payload),
    flops, seconds, eval_seconds, rounds; for each headline score SCORE_target, SCORE_target_seeds (how many reached
    it), and SCORE_target_rounds, _bytes, _flops, _seconds (means over these), SCORE_front_bytes and SCORE_front_flops
    (on the Pareto front); stability_std, stability_drop, stability_personal_std, stability_personal_drop;
    clients_worst10, clients_spread, clients_n (scores).
differences.csv, a row a method, headline score and other method
    label, score, kind ("baseline" or "rival", the best other method), against, n (seeds in common), mean, low, high (95
    %), p, corrected, verdict, note.
runs.csv, a row a finished run
    label, method, seed, every score and cost, selected_round, stopped_by, executor, workers, rounds_without_update,
    model_sha256, refused.
rounds.csv, a row a round of every run
    label, seed, and what rounds.jsonl holds (round counts from 0), nested names with a dot: metrics.auc,
    measures.drift.norm.
clients.csv, a row a client of every run
    label, seed, client, name, and its scores in the last evaluation: personal, shared.

A missing value is an empty cell, or null in parquet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstrata.analysis import frames
from fedstrata.analysis.comparison import Comparison
from fedstrata.analysis.records import Findings
from fedstrata.storage.atomic_files import atomic

FIRST: Mapping[str, Sequence[str]] = {
    "table": ("label", "method"),
    "differences": (
        "label",
        "score",
        "kind",
        "against",
        "n",
        "mean",
        "low",
        "high",
        "p",
        "corrected",
        "verdict",
        "note",
    ),
    "runs": ("label", "method", "seed"),
    "rounds": ("label", "seed", "round"),
    "clients": ("label", "seed", "client", "name"),
}
"""Columns that a table has even without a row."""

NOTE = "no .parquet files: they need pyarrow, pip install 'fedstrata[text]'"


def write_tables(comparison: Comparison, findings: Findings, folder: Path) -> list[Path]:
    """Write the tables as CSV and, where pyarrow is installed, as parquet.

    Args:
        comparison: with its runs.
        findings: of it.
        folder: made where it is missing.
    Returns:
        the files written; :func:`parquet_note` says why there are no parquet files among them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, rows in tables(comparison, findings).items():
        columns = list(dict.fromkeys((*FIRST[name], *frames.columns(rows))))
        written.append(write_csv(rows, columns, folder / f"{name}.csv"))
        if not parquet_note():
            written.append(write_parquet(rows, columns, folder / f"{name}.parquet"))
    return written


def tables(comparison: Comparison, findings: Findings) -> dict[str, list[frames.Row]]:
    """Map the name of each file to its rows."""
    return {
        "table": frames.findings_rows(findings),
        "differences": frames.difference_rows(findings),
        "runs": frames.runs(comparison),
        "rounds": frames.rounds(comparison),
        "clients": frames.clients(comparison),
    }


def parquet_note() -> str:
    """Say why no parquet files can be written; empty where they can."""
    try:
        import pyarrow as pa  # optional  # noqa: F401, PLC0415
    except ImportError:
        return NOTE
    return ""


def write_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], path: Path) -> Path:
    """Write rows as CSV, UTF-8, "." for decimals."""
    text = io.StringIO()
    out = csv.DictWriter(text, columns, lineterminator="\n")
    out.writeheader()
    out.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
    with atomic(path) as draft:
        draft.write_text(text.getvalue(), encoding="utf-8")
    return path


def write_parquet(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], path: Path) -> Path:
    """Write rows as parquet; a column holds numbers, truth values or text; an empty one holds numbers."""
    import pyarrow as pa  # optional  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    data = {name: _alike([row.get(name) for row in rows]) for name in columns}
    empty = {name for name, values in data.items() if all(value is None for value in values)}
    with atomic(path) as draft:
        parquet.write_table(
            pa.table(
                {name: pa.array(values, pa.float64() if name in empty else None) for name, values in data.items()}
            ),
            draft,
        )
    return path


def _alike(values: Sequence[Any]) -> list[Any]:
    """Convert values to one type: whole numbers become floats beside floats, and a mixture becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return list(values)
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]
