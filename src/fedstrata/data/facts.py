"""What a federation looks like, in numbers: sizes, labels, skew. Plain data, so that a report can be made without the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Facts:
    """A federation in numbers.

    Attributes:
        name, kind: of the data; "classification" or "regression".
        labels: class names; () for a regression.
        clients, heldout: counts; law: of the partition.
        train, validation, test: samples over all clients (heldout ones included), on the server.
        chance: accuracy of always naming the commonest class of the test data (of the clients' own tests where there is no server test);
            None for a regression.
        shown: clients that ``names``, ``sizes`` and ``counts`` speak of: all up to 200, otherwise evenly spaced ones.
        names: of these clients, as users know them (values of a client column, folder names, or numbers).
        sizes: their training samples.
        counts: a row a client: training samples of each class.
        skew: name -> number, as ``fedstrata doctor`` explains them: label_js, quantity_gini, feature_shift, ...
        notes: what a user must be told.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    clients: int
    heldout: int
    law: str
    train: int
    validation: int
    test: int
    chance: float | None
    shown: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    skew: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
