"""Every client's sizes and labels, walked once, for facts and for advice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedstrata.data.partition.base import ExplicitPartition
from fedstrata.data.types import Ints

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation

SHOWN = 200  # clients that a report shows
WALKED = 10_000  # clients up to which every one is looked at, where that takes a walk
CELLS = 50_000_000  # clients x classes up to which all are counted at once, where it takes none


@dataclass(frozen=True, eq=False)
class Survey:
    """What the clients that were looked at hold.

    Attributes:
        federation: that was surveyed.
        ids: [W] clients looked at: all; or evenly spaced ones where clients are derived when asked for, or are more
            than WALKED with splits of their own.
        training, validation, test: [W] samples by client; ``test`` is -1 where clients have no tests of their own.
        counts: [W, K] training samples of each class; one column where targets are no classes.
        tested: [K] samples of each class in the clients' own tests, all together; one column where targets are no classes.
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
        """Whether every client was looked at."""
        return len(self.ids) == self.federation.clients

    def total(self, sizes: Ints) -> int:
        """Samples over all clients: the sum, or, where not everyone was looked at, the mean of those who were times the
        number of clients.
        """
        return int(sizes.sum()) if self.whole else round(float(sizes.mean()) * self.federation.clients)


def spaced(count: int, most: int) -> Ints:
    """At most ``most`` of 0 .. count - 1, evenly spaced, first and last among them.

    >>> spaced(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return (
        np.arange(count, dtype=np.int64) if count <= most else np.linspace(0, count - 1, most).round().astype(np.int64)
    )


def survey(federation: Federation) -> Survey:
    """Look at the clients: at all where they are listed, up to WALKED where each has to be split, and SHOWN where they
    are derived when asked for.
    """
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
    for place, client in enumerate(() if plain else ids.tolist()):
        held = federation.training(client).numpy()
        training[place], validation[place] = len(held), len(federation.validating(client))
        counts[place] = np.bincount(labels[held], minlength=classes)
    test, tested = _tests(federation, ids, classes)
    return Survey(federation, ids, training, validation, test, counts, tested)


def _at_once(partition: ExplicitPartition, labels: Ints, classes: int) -> tuple[Ints, Ints]:
    """Sizes and label counts of all clients, where nothing is taken out of what they hold."""
    sizes = partition.sizes()
    codes = np.repeat(np.arange(len(sizes)), sizes) * classes + labels[partition.order]
    return sizes, np.bincount(codes, minlength=len(sizes) * classes).reshape(len(sizes), classes)


def _tests(federation: Federation, ids: Ints, classes: int) -> tuple[Ints, Ints]:
    """Sizes of own tests, -1 where there are none, and their labels all together."""
    sizes, tested = np.full(len(ids), -1, dtype=np.int64), np.zeros(classes, dtype=np.int64)
    for place, client in enumerate(ids.tolist() if federation.own_test is not None else ()):
        found = federation.testing(client)
        assert found is not None, "a federation with own tests has one for every client"
        samples, rows = found
        sizes[place] = len(rows)
        tested += np.bincount(samples.y[rows].numpy(), minlength=classes) if federation.task.has_classes else len(rows)
    return sizes, tested
