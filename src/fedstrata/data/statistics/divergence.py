"""Measure how much clients differ in labels and sizes, from a table of counts.

A client with few samples cannot hold every class in the right share, even where samples are dealt at random. Every
number about labels therefore has the number that chance alone gives beside it: the mean over ``SHUFFLES`` random deals
of the same labels to clients of the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.data.types import Ints

Floats = NDArray[np.float64]
SHUFFLES = 5


def jensen_shannon(counts: Ints) -> Floats:
    """Return the Jensen-Shannon divergence, in bits, of every row's distribution to the pooled one: [C].

    0 is equal, 1 has no class in common.

    JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2 with H in bits (Lin 1991, "Divergence measures based on the Shannon
    entropy").

    Args:
        counts: [C, K], no empty row.

    >>> [round(x, 3) for x in jensen_shannon(np.array([[5, 5], [5, 5]])).tolist()]
    [0.0, 0.0]
    >>> [round(x, 3) for x in jensen_shannon(np.array([[5, 0], [0, 5]])).tolist()]
    [0.311, 0.311]
    """
    shares = counts / counts.sum(1, keepdims=True)
    pooled = counts.sum(0) / counts.sum()
    return np.asarray(entropy((shares + pooled) / 2) - (entropy(shares) + entropy(pooled)) / 2)


def entropy(shares: Floats) -> Floats:
    """Return the entropy in bits over the last axis; 0 log 0 is 0."""
    return np.asarray(-(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(-1))


def effective_classes(counts: Ints) -> Floats:
    """Return the number of equally frequent classes with the same entropy: 2 ** entropy, [C].

    1 for a client with one class.
    """
    return np.asarray(2.0 ** entropy(counts / counts.sum(1, keepdims=True)))


def missing_classes(counts: Ints) -> Floats:
    """Return the share of all classes of which a client has no sample, in [0, 1): [C]."""
    present = counts.sum(0) > 0
    return np.asarray((counts[:, present] == 0).mean(1))


def label_skew(counts: Ints, rng: np.random.Generator) -> dict[str, float | None]:
    """Measure the label skew of clients.

    Args:
        counts: [C, K] training samples of each class; empty clients do not count.
        rng: deals labels at random, for the numbers that chance alone gives.
    Returns:
        ``label_skew``: 0 as after a random deal, 1 where every client holds a single class: (js - chance) / (worst -
            chance), which makes two classes and a hundred comparable. Its parts: ``label_js``, mean Jensen-Shannon
            divergence to the pooled
        labels in bits, clients weighted by their samples; ``label_classes``, mean effective number of classes;
        ``label_missing``, mean share of the classes without a sample; each also as ``..._chance``, after a random deal.
        None where there is one client, which cannot differ, and ``label_skew`` where there is one class, or clients are
        so small that a random deal is as bad as the worst.
    """
    filled = counts[counts.sum(1) > 0]
    if len(filled) < 2:
        return dict.fromkeys(("label_skew", *(name + end for name in _LABELS for end in ("", "_chance"))))
    deals = [_dealt_at_random(filled, rng) for _ in range(SHUFFLES)]
    measured = {name: measure(filled) for name, measure in _LABELS.items()}
    chance = {name: fmean(measure(deal) for deal in deals) for name, measure in _LABELS.items()}
    room = worst_divergence(filled) - chance["label_js"]
    skew = (measured["label_js"] - chance["label_js"]) / room if room > 0.01 else None
    return {"label_skew": skew, **measured, **{f"{name}_chance": value for name, value in chance.items()}}


_LABELS: Mapping[str, Callable[[Ints], float]] = {
    "label_js": lambda table: float(jensen_shannon(table) @ table.sum(1) / table.sum()),
    "label_classes": lambda table: float(effective_classes(table).mean()),
    "label_missing": lambda table: float(missing_classes(table).mean()),
}


def worst_divergence(counts: Ints) -> float:
    """Return the mean divergence, in bits, where every client holds a single class: the maximum (convexity)."""
    pooled = counts.sum(0) / counts.sum()
    single = np.eye(len(pooled))
    each = entropy((single + pooled) / 2) - entropy(pooled) / 2
    return float(pooled @ each)


def _dealt_at_random(counts: Ints, rng: np.random.Generator) -> Ints:
    """Deal the same labels at random to clients of the same sizes."""
    labels = rng.permutation(np.repeat(np.arange(counts.shape[1]), counts.sum(0)))
    owners = np.repeat(np.arange(len(counts)), counts.sum(1))
    return np.bincount(owners * counts.shape[1] + labels, minlength=counts.size).reshape(counts.shape)


def quantity_skew(sizes: Ints) -> dict[str, float | None]:
    """Measure the quantity skew of clients.

    Args:
        sizes: [C] samples of every client, empty ones included.
    Returns:
        ``quantity_gini`` in [0, 1): 0 where all are equal, near 1 where one client holds all; ``quantity_max_median``:
        the largest over the median client; ``quantity_smallest_tenth``: share of all samples that the smallest tenth of
        the clients hold (0.1 where all are equal). None where no client has a sample; the ratio also where the median
        client is empty, and the tenth with fewer than 10 clients.

    >>> quantity_skew(np.array([1, 1, 1, 1]))["quantity_gini"]
    0.0
    """
    total, ordered, clients = int(sizes.sum()), np.sort(sizes), len(sizes)
    if not total:
        return {"quantity_gini": None, "quantity_max_median": None, "quantity_smallest_tenth": None}
    ranks = np.arange(1, clients + 1)
    gini = float((2 * ranks - clients - 1) @ ordered / (clients * total))
    median, tenth = float(np.median(sizes)), clients // 10
    return {
        "quantity_gini": gini,
        "quantity_max_median": float(ordered[-1] / median) if median else None,
        "quantity_smallest_tenth": float(ordered[:tenth].sum() / total * (clients / 10) / tenth) if tenth else None,
    }


def between_share(values: Floats, labels: NDArray[Any], owners: NDArray[Any]) -> float | None:
    """Return the share of the variance within labels that is between clients.

    0 where all clients draw from one source, 1 where each client's samples are all equal.

    For every column, 1 - [SS_cells / (N - cells)] / [SS_labels / (N - labels)], where SS are sums of squares around the
    means of cells (label and client) and of labels; then the mean over the columns that vary. The divisors remove
    the effect of chance: samples dealt at random have expectation 0 (and may be slightly below). This is epsilon
    squared, or adjusted R squared (Kelley 1935, "An unbiased correlation ratio measure").

    Args:
        values: [N, D] features of samples.
        labels: [N] integers.
        owners: [N] integers, the client of a sample.
    Returns:
        None where no cell has two samples, or nothing varies.
    """
    inner, cells = _scatter(values, labels.astype(np.int64) * (int(owners.max(initial=0)) + 1) + owners)
    outer, groups = _scatter(values, labels.astype(np.int64))
    if len(values) <= cells or len(values) <= groups:
        return None
    within, whole = inner / (len(values) - cells), outer / (len(values) - groups)
    varies = whole > 1e-12
    return float((1 - within[varies] / whole[varies]).mean()) if varies.any() else None


def _scatter(values: Floats, codes: Ints) -> tuple[Floats, int]:
    """Return the sum of squares of every column around its group means, [D], and the number of groups."""
    _, group, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    means = (
        np.stack([np.bincount(group, weights=column) for column in values.T], axis=1) / sizes[:, None]
    )  # [groups, D]
    return np.asarray(((values - means[group]) ** 2).sum(0)), len(sizes)
