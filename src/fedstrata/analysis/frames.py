"""Flatten results into rows, one mapping a row, for CSV and parquet files, pandas and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fedstrata.analysis.records import Difference, Findings, Line, Spread
from fedstrata.analysis.scores import costs_of, scores_of
from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.common.suggest import suggestion
from fedstrata.runs.result import Result

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedstrata.analysis.comparison import Comparison

Row: TypeAlias = dict[str, Any]


def flat(row: Mapping[str, Any], prefix: str = "") -> Row:
    """Flatten nested mappings into columns "outer.inner"; lists become their length; None stays."""
    result: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[f"{prefix}{name}"] = len(value) if isinstance(value, list | tuple) else value
    return result


def rounds_of(result: Result) -> list[Row]:
    """Return a row a round, as in rounds.jsonl (``round`` counts from 0): metrics.auc, measures.drift.norm, ....

    Cohort and refused are counts.
    """
    return [flat(row) for row in result.rounds]


def clients_of(result: Result) -> list[Row]:
    """Return a row a client: client, and its scores in the last evaluation."""
    return [{"client": client, **scores} for client, scores in result.clients.items()]


def runs(comparison: Comparison) -> list[Row]:
    """Return a row a finished run: label, method, seed, every score, every cost, and how it was trained."""
    regression = not comparison.facts.has_accuracy
    kept = ("selected_round", "stopped_by", "executor", "workers", "rounds_without_update", "model_sha256")
    return [
        {"label": label, "method": method, "seed": seed}
        | scores_of(result, regression=regression)
        | costs_of(result)
        | {key: result.summary.get(key) for key in kept}
        | {"refused": sum((result.summary.get("refused") or {}).values())}
        for label, method, seed, result in _each(comparison)
    ]


def rounds(comparison: Comparison) -> list[Row]:
    """Return a row a round of every run, with its label and seed."""
    return [
        {"label": label, "seed": seed, **row}
        for label, _, seed, result in _each(comparison)
        for row in rounds_of(result)
    ]


def clients(comparison: Comparison) -> list[Row]:
    """Return a row a client of every run, with label, seed and the client's name where the facts have it."""
    names = dict(zip(comparison.facts.shown, comparison.facts.names, strict=False))
    return [
        {"label": label, "seed": seed, "client": client, "name": names.get(client), **scores}
        for label, _, seed, result in _each(comparison)
        for client, scores in result.clients.items()
    ]


def findings_rows(findings: Findings) -> list[Row]:
    """Return a row a method: scores and costs over seeds, targets, fronts, stability, fairness."""
    return [_line(line, findings) for line in findings.lines]


def difference_rows(findings: Findings) -> list[Row]:
    """Return a row a method, score and other method: differences to the baseline, margins to the best competitor."""
    rows = []
    for line in findings.lines:
        for score, it in line.differences.items():
            if it.verdict != "baseline":
                rows.append(_difference(line.label, score, "baseline", findings.baseline, it))
        rows += [_difference(line.label, score, "rival", rival, it) for score, (rival, it) in line.margins.items()]
    return rows


def frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Convert rows to a pandas DataFrame; columns in the order of their first appearance.

    Raises:
        FedstrataError: pandas is not installed.
    """
    try:
        import pandas as pd  # optional  # noqa: PLC0415
    except ImportError as error:
        raise FedstrataError(
            "to_pandas needs pandas, which is not installed: pip install 'fedstrata[text]'."
        ) from error
    return pd.DataFrame([dict(row) for row in rows], columns=columns(rows))


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List all columns, in the order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def picked(what: str, choices: Mapping[str, Any]) -> Any:
    """Return the choice of this name.

    Raises:
        ConfigError: there is none.
    """
    if what not in choices:
        raise ConfigError(f"to_pandas({what!r}); it gives {', '.join(choices)}.{suggestion(what, choices)}")
    return choices[what]


def _each(comparison: Comparison) -> Iterator[tuple[str, str, int, Result]]:
    for entry in comparison.entries:
        for seed in comparison.seeds:
            if (entry.label, seed) in comparison.results:
                yield entry.label, entry.method, seed, comparison.results[entry.label, seed]


def _line(line: Line, findings: Findings) -> Row:
    row: Row = {"label": line.label, "method": line.method, "baseline": line.label == findings.baseline}
    row |= {"informative": line.informative, "own_models": line.uses_personal, "shared_unused": line.shared_unused}
    for name, spread in (*line.scores.items(), *line.costs.items()):
        row |= _spread(name, spread)
    for score, reached in line.targets.items():
        row[f"{score}_target"] = findings.targets[score]
        row[f"{score}_target_seeds"] = reached.seeds[0]
        for cost in ("rounds", "bytes", "flops", "seconds"):
            spread = getattr(reached, cost)
            row[f"{score}_target_{cost}"] = None if spread is None else spread.mean
    for score, front in line.fronts.items():
        row |= {f"{score}_front_{cost}": cost in front for cost in ("bytes", "flops")}
    row |= {f"stability_{name}": value for name, value in line.stability.items()}
    kept = {"worst10": "worst10", "spread": "spread", "clients": "n"}
    return row | {f"clients_{column}": line.fairness[name] for name, column in kept.items() if name in line.fairness}


def _spread(name: str, spread: Spread) -> Row:
    return {f"{name}_mean": spread.mean, f"{name}_std": spread.std, f"{name}_n": spread.n}


def _difference(label: str, score: str, kind: str, against: str, it: Difference) -> Row:
    row: Row = {
        "label": label,
        "score": score,
        "kind": kind,
        "against": against,
        "n": it.n,
        "mean": it.mean,
        "low": it.low,
        "high": it.high,
    }
    return row | {"p": it.p, "corrected": it.corrected, "verdict": it.verdict, "note": it.note}
