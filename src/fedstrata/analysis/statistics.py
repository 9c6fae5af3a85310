"""Compute statistics of a comparison as pure functions: differences, corrections, intervals, fronts, fairness.

What is undefined is None, never NaN. Seeds are the sample: two methods share data, partition, first weights and
clients' turns in a seed, so differences are taken seed by seed. Student's t assumes that these differences are roughly
normal; three seeds are too few to check that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import special

from fedstrata.common.errors import DataError

LEVEL = 0.95
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Paired:
    """Describes a paired difference, ours minus theirs.

    Attributes:
        n: pairs.
        mean: of the differences.
        std: of the differences (n - 1); None for one pair. Exactly 0 where they agree up to the rounding of their
            subtraction.
        low, high: interval of the mean; None for one pair. One point where ``std`` is 0.
        p: of the two-sided paired t-test; None for one pair and where ``std`` is 0: the statistic is then 0/0 or
            infinite, and a p of 0 would claim a certainty that a handful of equal numbers does not give.
    """

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None
    p: float | None


def known(value: float | None) -> bool:
    """Return whether there is a finite number."""
    return value is not None and math.isfinite(value)


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the arithmetic mean, and sqrt(sum (x - mean)^2 / (n - 1)).

    The second is None with one value, and exactly 0 for equal values.

    Raises:
        DataError: no value, or one that is not finite.
    """
    if not values or not all(map(known, values)):
        raise DataError(f"mean of {list(values)}; at least one number is wanted, all of them finite.")
    if min(values) == max(values):
        return float(values[0]), 0.0 if len(values) > 1 else None
    return float(np.mean(values)), float(np.std(values, ddof=1))


def pairs(ours: Mapping[K, float | None], theirs: Mapping[K, float | None]) -> tuple[list[K], list[float], list[float]]:
    """Return the keys (seeds) for which both have a finite value, in the order of ``ours``, and the values of each."""
    shared = [key for key in ours if known(ours[key]) and known(theirs.get(key))]
    return shared, [float(ours[key] or 0.0) for key in shared], [float(theirs[key] or 0.0) for key in shared]


def paired(ours: Sequence[float], theirs: Sequence[float], level: float = LEVEL) -> Paired | None:
    """Test paired differences d = ours - theirs: mean d, its interval, and the two-sided t-test of mean 0.

    The interval is mean +- t(n - 1) std / sqrt(n).

    Args:
        ours: [n] finite numbers, one a seed.
        theirs: the same, in the same order.
        level: of the interval.
    Returns:
        the difference; None for n = 0.
    Raises:
        DataError: different lengths, or a number that is not finite.

    Source: Student 1908; Fisher, "Statistical Methods for Research Workers", sec. 24.

    >>> paired([3.0, 4.0, 8.0], [2.0, 2.0, 5.0]).mean
    2.0
    """
    if len(ours) != len(theirs) or not all(map(known, (*ours, *theirs))):
        raise DataError(f"paired differences of {len(ours)} and {len(theirs)} numbers; as many are wanted, all finite.")
    n = len(ours)
    if not n:
        return None
    d = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)  # [n]
    mean = float(d.mean())
    if n == 1:
        return Paired(1, mean, None, None, None, None)
    rounding = (
        4 * np.finfo(np.float64).eps * max(1e-300, float(np.abs([ours, theirs]).max()))
    )  # of two subtractions of such numbers
    if float(np.ptp(d)) <= rounding:
        point = 0.0 if abs(mean) <= rounding else mean
        return Paired(n, point, 0.0, point, point, None)
    std = float(d.std(ddof=1))
    error = std / math.sqrt(n)
    half = float(special.stdtrit(n - 1, (1 + level) / 2)) * error
    p = float(2 * special.stdtr(n - 1, -abs(mean) / error))
    return Paired(n, mean, std, mean - half, mean + half, min(1.0, p))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Correct the p-values of a family of hypotheses, step-down; None stays None.

    Each becomes the maximum over the smaller ones of (m - rank) p, at most 1.

    The chance that any true null hypothesis is rejected at 0.05 is then at most 0.05, however the tests depend on each
    other. m counts the hypotheses that have a p.

    Source: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".

    >>> holm([0.01, None, 0.04])
    [0.02, None, 0.04]
    """
    order = sorted((p, index) for index, p in enumerate(ps) if p is not None)
    result: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        result[index] = largest
    return result


def share_interval(hits: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval of a share; (0, 1) without trials.

    Its ends are quantiles of Beta(hits, trials - hits + 1) and Beta(hits + 1, trials - hits).

    It holds at least ``level`` of the time for every true share, and is exactly 0 below at no hits, exactly 1 above at
    all hits.

    Raises:
        DataError: hits outside [0, trials], or a level outside (0, 1).

    Source: Clopper and Pearson 1934.
    """
    if not 0 <= hits <= trials or not 0 < level < 1:
        raise DataError(
            f"{hits} hits of {trials} trials at level {level}; hits are between 0 and trials, the level between 0"
            " and 1."
        )
    if not trials:
        return 0.0, 1.0
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(special.betaincinv(hits, trials - hits + 1, tail))
    high = 1.0 if hits == trials else float(special.betaincinv(hits + 1, trials - hits, 1 - tail))
    return low, high


def first_reaching(values: Sequence[float | None], target: float, *, larger: bool = True) -> int | None:
    """Return the index of the first value at or beyond the target, or None; missing values do not count."""
    for index, value in enumerate(values):
        if value is not None and math.isfinite(value) and (value >= target if larger else value <= target):
            return index
    return None


def front(points: Sequence[tuple[float | None, float | None]], *, larger: bool = True) -> list[bool]:
    """Mark the (cost, score) points that no other dominates.

    A point dominates another if it is at least as good and as cheap, and better in one of the two.

    Equal points lie on the front together; a point with a missing number is not on it and dominates none.
    """
    sign = 1.0 if larger else -1.0
    full = [None if c is None or s is None or not (known(c) and known(s)) else (c, sign * s) for c, s in points]

    def beaten(mine: tuple[float, float]) -> bool:
        return any(it is not None and it != mine and it[0] <= mine[0] and it[1] >= mine[1] for it in full)

    return [mine is not None and not beaten(mine) for mine in full]


def stability(curve: Sequence[float], *, larger: bool = True) -> tuple[float | None, float | None]:
    """Return the spread at the end of a curve, and its largest loss between two evaluations that follow.

    The spread is the standard deviation of the last tenth of the evaluations, at least 3 of them.

    The first is None with fewer than 3 evaluations, the second with fewer than 2; a curve that never gets worse has a
    loss of 0.
    """
    sign = 1.0 if larger else -1.0
    drop = max((max(0.0, sign * (a - b)) for a, b in itertools.pairwise(curve)), default=None)
    return (mean_std(curve[-max(3, len(curve) // 10) :])[1] if len(curve) >= 3 else None), drop


def worst_tenth(values: Sequence[float], *, larger: bool = True) -> float | None:
    """Return the mean of the worst tenth, of at least one value (n // 10, as in summary.json); None without values."""
    ordered = sorted(values, reverse=not larger)
    return float(np.mean(ordered[: max(1, len(ordered) // 10)])) if ordered else None


def histogram(values: Sequence[float], bins: int = 20) -> tuple[int, ...]:
    """Count values over [0, 1] in equal bins; the last one includes 1.

    Raises:
        DataError: a value outside [0, 1].
    """
    if any(not 0 <= value <= 1 for value in values):
        raise DataError(f"a histogram over [0, 1] of values from {min(values)} to {max(values)}.")
    return tuple(
        int(count) for count in np.histogram(np.asarray(values, dtype=np.float64), bins=bins, range=(0.0, 1.0))[0]
    )


def slope(y: Sequence[float]) -> tuple[float, float] | None:
    """Fit a straight line by least squares: (slope a step, one-sided p of a slope above 0).

    None with fewer than 4 values or a perfect line.

    The test takes the errors round the line as independent, which neighbouring rounds are not quite: use it on one run
    only where there are no other seeds to compare it with.
    """
    n = len(y)
    if n < 4:
        return None
    x = np.arange(n) - (n - 1) / 2
    values = np.asarray(y, dtype=np.float64)
    gain = float((x * values).sum() / (x * x).sum())
    left = values - values.mean() - gain * x
    error = math.sqrt(float((left * left).sum()) / (n - 2) / float((x * x).sum()))
    if error <= 1e-12 * max(1e-300, float(np.abs(values).max())):
        return None
    return gain, float(special.stdtr(n - 2, -gain / error))
