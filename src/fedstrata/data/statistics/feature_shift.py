"""Measure how much clients' samples of one label differ, without a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedstrata.common.random_streams import stream, torch_stream
from fedstrata.data.statistics.divergence import Floats, between_share
from fedstrata.data.types import Ints, Task

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation

MOST = 4096  # samples that are read
PROJECTIONS = 16
COLUMNS = 64  # a table with more columns is projected
PERMUTATIONS = 19  # chance exceeds the largest of them once in twenty times
TARGETS = 10  # equal groups of a regression's targets, in place of labels
BATCH = 512


def feature_skew(federation: Federation, clients: Sequence[int]) -> dict[str, float | None]:
    """Return the between-client share of the variance of samples of one label.

    See :func:`between_share` and :func:`summaries`.

    At most MOST training samples are read, evenly spaced ones of each client. A regression's targets take the place of
    labels in ten equal groups.

    Args:
        federation: any.
        clients: to compare.
    Returns:
        ``feature_shift``, about 0 where clients' samples of a label have one source; ``feature_shift_chance``: the
        largest of PERMUTATIONS values with the samples of each label dealt again, which a federation without feature
        skew exceeds once in twenty times. For a regression also ``target_shift`` and ``target_shift_chance``: the same
        of the targets themselves. None where there is nothing to compare.
    """
    targets = federation.task.definition.targets
    names = ("feature", "target") if targets == "numbers" else ("feature",)
    rows, owners = _sampled(federation, clients)
    if len(clients) < 2 or not len(rows):
        return {f"{name}_shift{end}": None for name in names for end in ("", "_chance")}
    y = federation.train.y[torch.from_numpy(rows)].numpy()
    seen = _read(federation, rows)
    if targets != "numbers":
        labels = y if targets == "classes" else np.zeros(len(y), dtype=np.int64)  # without labels: all samples alike
        return _against_chance("feature", seen, labels, owners, federation.seed)
    groups = np.argsort(np.argsort(y, kind="stable"), kind="stable") * TARGETS // len(y)
    shift = _against_chance("target", y[:, None].astype(np.float64), np.zeros_like(groups), owners, federation.seed)
    return _against_chance("feature", seen, groups, owners, federation.seed) | shift


def _sampled(federation: Federation, clients: Sequence[int]) -> tuple[Ints, Ints]:
    """Return training positions, and the index in ``clients`` of their holders."""
    each = max(2, MOST // max(1, len(clients)))
    rows, owners = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for i, client in enumerate(clients):
        held = federation.training(client).numpy()
        if len(held) > each:
            held = held[np.linspace(0, len(held) - 1, each).round().astype(np.int64)]
        rows.append(held)
        owners.append(np.full(len(held), i, dtype=np.int64))
    return np.concatenate(rows), np.concatenate(owners)


def _read(federation: Federation, rows: Ints) -> Floats:
    parts = [
        federation.train.take(torch.from_numpy(rows[start : start + BATCH])) for start in range(0, len(rows), BATCH)
    ]
    return torch.cat([summaries(part, federation.task) for part in parts]).numpy()


def summaries(x: Tensor, task: Task) -> Tensor:
    """Summarise each sample in a few numbers: [B, D] float64.

    Images: mean, standard deviation and mean step between neighbouring pixels of each channel, and random projections.
    Tables and series: the columns up to COLUMNS of them, random projections otherwise. Tokens: the mean over a sample
    of a random vector a token, which is a projection of its word counts. Projections are the same on every machine.

    Args:
        x: [B, *shape], as ``Samples.take`` gives it.
        task: of the federation.
    """
    if task.vocabulary:
        table = torch.randn(task.vocabulary, PROJECTIONS, generator=torch_stream(0, "summaries", "tokens"))
        return table[x.flatten(1)].mean(1).double()
    flat = x.flatten(1)  # [B, F]
    if len(task.shape) == 3:
        across, down = x.diff(dim=3).abs(), x.diff(dim=2).abs()  # empty where a picture is one pixel wide
        steps = [part.mean((2, 3)) for part in (across, down) if part.numel()]
        return torch.cat([x.mean((2, 3)), x.flatten(2).std(2, unbiased=False), *steps, _projected(flat)], 1).double()
    return (flat if flat.shape[1] <= COLUMNS else _projected(flat)).double()


def _projected(flat: Tensor) -> Tensor:
    width = flat.shape[1]
    directions = torch.randn(width, PROJECTIONS, generator=torch_stream(0, "summaries", "projections"))
    return flat @ (directions / float(np.sqrt(width)))


def _against_chance(name: str, values: Floats, labels: Ints, owners: Ints, seed: int) -> dict[str, float | None]:
    """Return the share, and the largest share after shuffling the owners within each label."""
    share = between_share(values, labels, owners)
    if share is None:
        return {f"{name}_shift": None, f"{name}_shift_chance": None}
    rng, by_label = stream(seed, "facts", name), np.argsort(labels, kind="stable")
    values, labels, owners = values[by_label], labels[by_label], owners[by_label]
    chance = []
    for _ in range(PERMUTATIONS):
        order = np.lexsort((rng.random(len(labels)), labels))  # shuffled within labels
        chance.append(between_share(values, labels, owners[order]))
    return {f"{name}_shift": share, f"{name}_shift_chance": max(c for c in chance if c is not None)}
