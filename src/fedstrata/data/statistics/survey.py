"""Count every client's samples and labels in one pass, for facts and for advice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedstrata.data.partition.base import ExplicitPartition
from fedstrata.data.types import Ints

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation

SHOWN = 200  # clients in a report
WALKED = 10_000  # up to so many clients all are counted one by one
CELLS = 50_000_000  # up to so many clients x classes all are counted at once


@dataclass(frozen=True, eq=False)
class Survey:
    """The counts of the surveyed clients.

    Attributes:
        federation: that was surveyed.
        ids: [W] surveyed clients: all; or evenly spaced ones where clients are derived when needed, or where more
            than WALKED have separate splits.
        training, validation, test: [W] samples by client; ``test`` is -1 where clients have no test splits.
        counts: [W, K] training samples of each class; one column where targets are no classes.
        tested: [K] samples of each class in all clients' test splits; one column where targets are no classes.
    """

    federation: Federation = field(repr=False)
    ids: Ints
    training: Ints
    validation: Ints
    test: Ints
    counts: Ints
    tested: Ints

    @property
    def whole(self) -> bool:
        """Whether every client was surveyed."""
        return len(self.ids) == self.federation.clients

    def total(self, sizes: Ints) -> int:
        """Sum samples over all clients; where only some were surveyed, scale their mean up."""
        return int(sizes.sum()) if self.whole else round(float(sizes.mean()) * self.federation.clients)


def spaced(count: int, most: int) -> Ints:
    """Return at most ``most`` of 0 .. count - 1, evenly spaced, with the first and the last.

    >>> spaced(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return (
        np.arange(count, dtype=np.int64) if count <= most else np.linspace(0, count - 1, most).round().astype(np.int64)
    )


def survey(federation: Federation) -> Survey:
    """Survey the clients: all where they are listed, up to WALKED where each must be split, SHOWN where derived."""
    classes = federation.task.num_classes
    labels = (
        federation.train.y.numpy() if federation.task.has_classes else np.zeros(len(federation.train), dtype=np.int64)
    )
    plain = (
        isinstance(federation.partition, ExplicitPartition)
        and not federation.validation
        and federation.own_test is None
    )
    plain = plain and federation.clients * classes <= CELLS
    most = federation.clients if plain else SHOWN if federation.partition.lazy else WALKED
    ids = spaced(federation.clients, most)
    training, validation = np.zeros_like(ids), np.zeros_like(ids)
    counts = np.zeros((len(ids), classes), dtype=np.int64)
    if plain:
        assert isinstance(federation.partition, ExplicitPartition)
        training, counts = _at_once(federation.partition, labels, classes)
    for i, client in enumerate(() if plain else ids.tolist()):
        held = federation.training(client).numpy()
        training[i], validation[i] = len(held), len(federation.validating(client))
        counts[i] = np.bincount(labels[held], minlength=classes)
    test, tested = _tests(federation, ids, classes)
    return Survey(federation, ids, training, validation, test, counts, tested)


def _at_once(partition: ExplicitPartition, labels: Ints, classes: int) -> tuple[Ints, Ints]:
    """Count sizes and labels of all clients at once, where clients train on all samples that they hold."""
    sizes = partition.sizes()
    codes = np.repeat(np.arange(len(sizes)), sizes) * classes + labels[partition.order]
    return sizes, np.bincount(codes, minlength=len(sizes) * classes).reshape(len(sizes), classes)


def _tests(federation: Federation, ids: Ints, classes: int) -> tuple[Ints, Ints]:
    """Count test splits, -1 where there are none, and their labels all together."""
    sizes, tested = np.full(len(ids), -1, dtype=np.int64), np.zeros(classes, dtype=np.int64)
    for i, client in enumerate(ids.tolist() if federation.own_test is not None else ()):
        split = federation.testing(client)
        assert split is not None, "a federation with client tests has one for every client"
        samples, rows = split
        sizes[i] = len(rows)
        tested += np.bincount(samples.y[rows].numpy(), minlength=classes) if federation.task.has_classes else len(rows)
    return sizes, tested
