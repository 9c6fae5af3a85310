"""Average curves over seeds: mean and standard deviation of a score against rounds, bytes, FLOPs or seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstrata.runs.result import Result

POINTS = 100  # of a line; more cannot be seen in a picture of this width
AXES = {"rounds": "round", "bytes": "bytes sent, up and down", "flops": "clients' training", "seconds": "training time"}


@dataclass(frozen=True)
class Curve:
    """Holds the curve of one method.

    Attributes:
        rounds: from 1, at which all its runs were evaluated.
        x: rounds, or the mean over seeds of what had been spent by then.
        y: mean over seeds; std: standard deviation (n - 1), None for one seed.
        seeds: how many.
        longest: last evaluated round of any seed; later than ``rounds[-1]`` where seeds ended at different rounds.
    """

    rounds: Sequence[int]
    x: Sequence[float]
    y: Sequence[float]
    std: Sequence[float] | None
    seeds: int
    longest: int

    def thin(self, most: int = POINTS) -> Curve:
        """Keep at most this many points, evenly spaced, including the first and the last."""
        count = len(self.rounds)
        if count <= most:
            return self
        kept = sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})
        std = None if self.std is None else [self.std[k] for k in kept]
        return Curve(
            [self.rounds[k] for k in kept],
            [self.x[k] for k in kept],
            [self.y[k] for k in kept],
            std,
            self.seeds,
            self.longest,
        )


def curve(runs: Sequence[Result], key: str, axis: str, sign: float = 1.0) -> Curve | None:
    """Compute the curve of a score.

    Args:
        runs: of one method.
        key: of a row of rounds.jsonl, or of its ``metrics``.
        axis: rounds, bytes, flops or seconds.
        sign: -1 turns minus an error, as rounds of a regression hold it, into the error.
    Returns:
        None where no round has the score in all runs.
    """
    by_run = [points for run in runs if (points := _points(run, key, axis))]
    if not by_run:
        return None
    common = sorted(set.intersection(*(set(points) for points in by_run)))
    if not common:
        return None
    values = [[sign * points[r][1] for points in by_run] for r in common]
    std = [statistics.stdev(v) for v in values] if len(by_run) > 1 else None
    x = [float(r) if axis == "rounds" else statistics.fmean(points[r][0] for points in by_run) for r in common]
    return Curve(
        common, x, [statistics.fmean(v) for v in values], std, len(by_run), max(max(points) for points in by_run)
    )


def _points(run: Result, key: str, axis: str) -> dict[int, tuple[float, float]]:
    """Map the round (from 1) to what had been spent, and the score."""
    spent, points = 0.0, {}
    for row in run.rounds:
        spent += _spent(row, axis)
        score = value(row, key)
        if score is not None:
            points[int(row["round"]) + 1] = (spent, score)
    return points


def _spent(row: Mapping[str, Any], axis: str) -> float:
    if axis == "rounds":
        return 1.0
    if axis == "bytes":
        return float((row.get("bytes_up") or 0) + (row.get("bytes_down") or 0))
    return float(row.get(axis) or 0.0)


def value(row: Mapping[str, Any], key: str) -> float | None:
    """Return a score of a row, or of its metrics."""
    number = row.get(key)
    if number is None:
        number = (row.get("metrics") or {}).get(key)
    return float(number) if isinstance(number, int | float) and math.isfinite(number) else None
