"""Read scores, costs and curves of a run by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstrata.runs.result import Result

ACCURACIES: Mapping[str, str] = {
    "final": "accuracy, last round",
    "best": "accuracy, best round on test data (optimistic)",
    "window": "accuracy, mean of the last tenth",
    "selected": "accuracy, round chosen on validation data",
    "personal": "personal accuracy, mean over clients",
    "personal_weighted": "personal accuracy, by samples",
    "personal_std": "personal accuracy, spread over clients",
    "personal_worst10": "personal accuracy, worst tenth",
    "personal_selected": "personal accuracy, round chosen on validation data",
    "heldout": "accuracy on held-out clients, as received",
    "heldout_adapted": "accuracy on held-out clients, after new_clients.steps",
    "heldout_own": "accuracy on held-out clients, personalised by the method",
}
"""What reports call the accuracies of summary.json."""

SCORE_LABELS: Mapping[str, str] = {
    "selected": "selected accuracy",
    "window": "accuracy over the last tenth of the evaluations",
    "final": "final accuracy",
    "best": "best accuracy on test data",
    "personal_selected": "selected personal accuracy",
    "personal": "personal accuracy",
    "personal_weighted": "personal accuracy by samples",
    "personal_std": "spread of personal accuracy",
    "personal_worst10": "personal accuracy of the worst tenth",
    "heldout": "accuracy of held-out clients, model as received",
    "heldout_adapted": "accuracy of held-out clients after a few personal steps",
    "heldout_own": "accuracy of held-out clients, the method's own personal models",
    "shared_on_clients": "accuracy of the shared model at the clients",
    "rmse_selected": "selected RMSE",
    "rmse_window": "RMSE over the last tenth of the evaluations",
    "rmse": "final RMSE",
    "r2": "final R2",
    "personal_rmse_selected": "selected personal RMSE",
    "personal_rmse": "personal RMSE",
}
"""Labels of scores; :func:`score_label` derives the rest."""

COSTS = ("bytes_up", "bytes_down", "bytes", "flops", "seconds", "eval_seconds", "rounds")
_MINUS = (
    "personal",
    "personal_weighted",
    "personal_worst10",
    "personal_selected",
    "heldout",
    "heldout_adapted",
    "heldout_own",
    "shared_on_clients",
)


def score_label(score: str) -> str:
    """Return what a score is called in a sentence."""
    return SCORE_LABELS.get(score, score.replace("_", " "))


def threshold(chance: float) -> float:
    """Return the score below which differences say little.

    It is twice chance, or half of the way from chance to 1 where twice chance is more than that.
    """
    return min(2 * chance, (1 + chance) / 2)


def threshold_text(chance: float) -> str:
    """Return what :func:`threshold` is called in a sentence."""
    return "twice chance" if 2 * chance <= (1 + chance) / 2 else "half of the way from chance to 1"


@dataclass(frozen=True)
class Point:
    """Describes an evaluated round.

    Attributes:
        round: counted from 1.
        bytes, flops, seconds: spent up to its end (payload up and down; clients' training; committed rounds).
        score: of the model.
    """

    round: int
    bytes: float
    flops: float
    seconds: float
    score: float


def points(result: Result, *, personal: bool = False, regression: bool = False) -> list[Point]:
    """Return the curve of a run: test accuracy (or RMSE) of the shared model, or the mean over personal models.

    Where no server tests, the shared model's score is its mean over the clients.
    """
    curve = []
    spent = {"bytes": 0.0, "flops": 0.0, "seconds": 0.0}
    for row in result.rounds:
        spent["bytes"] += (row.get("bytes_up") or 0) + (row.get("bytes_down") or 0)
        spent["flops"] += row.get("flops") or 0.0
        spent["seconds"] += row.get("seconds") or 0.0
        score = _row_score(row, personal=personal, regression=regression)
        if score is not None:
            curve.append(Point(int(row["round"]) + 1, **spent, score=score))
    return curve


def _row_score(row: Mapping[str, Any], *, personal: bool, regression: bool) -> float | None:
    if not personal:
        shared = _finite((row.get("metrics") or {}).get("rmse") if regression else row.get("accuracy"))
        if shared is not None:
            return shared
    score = _finite(row.get("personal" if personal else "shared_on_clients"))
    return -score if score is not None and regression else score


def scores_of(result: Result, *, regression: bool = False) -> dict[str, float]:
    """Return every finite score of a run, by the names of :class:`~fedstrata.analysis.records.Line`."""
    summary = result.summary
    scores = _numbers(summary.get("accuracy")) | {
        k: v for k, v in _numbers(summary.get("metrics")).items() if k != "accuracy"
    }
    chosen = _chosen(result)
    if regression:
        return _errors(result, scores, chosen)
    if (
        chosen is not None
        and "selected" in scores
        and "personal_selected" not in scores
        and (personal := _finite(chosen.get("personal"))) is not None
    ):
        scores["personal_selected"] = personal
    return scores


def _errors(result: Result, scores: Mapping[str, float], chosen: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the scores of a regression: clients' scores, which rise with quality, become errors again."""
    errors = {key: value for key, value in scores.items() if key not in (*_MINUS, "personal_std")}
    errors |= {f"{key}_rmse": -scores[key] for key in _MINUS if key in scores and key != "personal_selected"}
    if "personal_std" in scores:
        errors["personal_rmse_std"] = scores["personal_std"]
    shared = [point.score for point in points(result, regression=True)]
    if shared:
        tail = shared[-max(1, len(shared) // 10) :]
        errors |= {"rmse": shared[-1], "rmse_window": math.fsum(tail) / len(tail)}
    if chosen is not None:
        for key, personal in (("rmse_selected", False), ("personal_rmse_selected", True)):
            score = _row_score(chosen, personal=personal, regression=True)
            if score is not None:
                errors[key] = score
    return errors


def _chosen(result: Result) -> Mapping[str, Any] | None:
    """Return the round chosen on validation data: the first with the largest score."""
    rows = [row for row in result.rounds if _finite(row.get("validation")) is not None]
    selected = result.summary.get("selected_round")
    if selected is not None:
        return next((row for row in rows if row["round"] == selected), None)
    return max(rows, key=lambda row: (row["validation"], -row["round"]), default=None)


def costs_of(result: Result) -> dict[str, float]:
    """Return the costs of a run: payload bytes, clients' FLOPs, seconds of training and of evaluation, rounds."""
    costs = {key: value for key, value in _numbers(result.summary).items() if key in COSTS}
    if "bytes_up" in costs and "bytes_down" in costs:
        costs["bytes"] = costs["bytes_up"] + costs["bytes_down"]
    return costs


def client_scores(result: Result, *, regression: bool = False) -> list[float]:
    """List clients' scores in the last evaluation: of their personal models, or of the shared one.

    Errors for a regression.
    """
    values = []
    for scores in result.clients.values():
        score = _finite(scores.get("personal"))
        score = _finite(scores.get("shared")) if score is None else score
        if score is not None:
            values.append(-score if regression else score)
    return values


def _numbers(record: Mapping[str, Any] | None) -> dict[str, float]:
    return {key: float(value) for key, value in (record or {}).items() if _finite(value) is not None}


def _finite(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        else None
    )


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None without values."""
    return math.fsum(values) / len(values) if values else None
