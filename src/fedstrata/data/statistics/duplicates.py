"""Samples whose content is met more than once: between training and test, between clients, within one client, with two
labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from fedstrata.common.errors import DataError
from fedstrata.data.io.samples import Samples

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation

MOST = 10_000  # clients
SHOWN = 5  # examples of a kind
Kind = Literal["train-test", "clients", "labels"]
Owner = int | Literal["test set"] | None


@dataclass(frozen=True)
class Copy:
    """Two samples of one content.

    Attributes:
        kind: train-test (trained on and tested on), clients (held by two), labels (of two classes).
        first, second: who holds them (a client, the server's test set, or None for training samples that nobody asked
            for holds) and where: the position in the training set, or in the test set.
    """

    kind: Kind
    first: tuple[Owner, int]
    second: tuple[Owner, int]


@dataclass(frozen=True)
class Duplicates:
    """Samples whose content is met more than once.

    Attributes:
        train_test: test samples whose content is also trained on: of the test set against the training set, or, where
            clients test on samples of their own, of those against what all clients asked for train on.
        within_train: training samples whose content was met before in the training set.
        across_clients: contents held by more than one of the clients asked for.
        two_labels: contents of the training set that stand under more than one class.
        examples: up to SHOWN of each kind, in the order met.
        tested: test samples that were looked at.
    """

    train_test: int
    within_train: int
    across_clients: int
    two_labels: int = 0
    examples: tuple[Copy, ...] = ()
    tested: int = 0


def duplicates(federation: Federation, clients: Sequence[int] | None = None, batch: int = 1024) -> Duplicates:
    """Count equal features by content hash (exact equality of bytes as read). Reads every sample once, so it is made
    only on request.

    Args:
        federation: any.
        clients: whose samples are compared with each other; default all, at most 10,000.
        batch: samples hashed at a time.
    Raises:
        DataError: more than 10,000 clients are meant; give a range.
    """
    who = range(federation.clients) if clients is None else clients
    if len(who) > MOST:
        raise DataError(f"duplicates() over {len(who)} clients; give clients=range(...) of at most 10,000.")
    train = _digests(federation.train, batch)
    holders: dict[int, int] = {}  # position -> the first client that holds it
    owners: dict[bytes, tuple[int, int]] = {}
    shared: dict[bytes, Copy] = {}
    for client in who:
        for row in sorted(set(federation.partition.indices(client).tolist())):
            holders.setdefault(row, client)
            first = owners.setdefault(train[row], (client, row))
            if first[0] != client:
                shared.setdefault(train[row], Copy("clients", first, (client, row)))
    met, again, mixed = _within(federation, train, holders)
    leaks, tested = _leaks(federation, train, met, holders, who, batch)
    shown = (*leaks[:SHOWN], *list(shared.values())[:SHOWN], *list(mixed.values())[:SHOWN])
    return Duplicates(len(leaks), again, len(shared), len(mixed), shown, tested)


def _within(
    federation: Federation, train: list[bytes], holders: dict[int, int]
) -> tuple[dict[bytes, int], int, dict[bytes, Copy]]:
    """First position of each content, how many more samples there are, and contents under two classes."""
    met: dict[bytes, int] = {}
    mixed: dict[bytes, Copy] = {}
    labels = federation.train.y.tolist()
    for row, digest in enumerate(train):
        first = met.setdefault(digest, row)
        if labels[first] != labels[row] and federation.task.has_classes:
            mixed.setdefault(digest, Copy("labels", (holders.get(first), first), (holders.get(row), row)))
    return met, len(train) - len(met), mixed


def _leaks(
    federation: Federation,
    train: list[bytes],
    met: dict[bytes, int],
    holders: dict[int, int],
    who: Sequence[int],
    batch: int,
) -> tuple[list[Copy], int]:
    """Test samples that are trained on, and how many test samples there are."""
    if federation.official is not None:
        late = _digests(federation.official, batch)
        found = [
            Copy("train-test", (holders.get(met[d]), met[d]), ("test set", row))
            for row, d in enumerate(late)
            if d in met
        ]
        return found, len(late)
    trained: dict[bytes, tuple[Owner, int]] = {}
    for client in who:
        for row in federation.training(client).tolist():
            trained.setdefault(train[row], (client, row))
    own = list(_own_rows(federation, who))
    return [
        Copy("train-test", trained[train[row]], (client, row)) for client, row in own if train[row] in trained
    ], len(own)


def _own_rows(federation: Federation, who: Sequence[int]) -> Iterator[tuple[int, int]]:
    for client in who:
        own = federation.testing(client)
        if own is not None:
            yield from ((client, row) for row in own[1].tolist())


def _digests(samples: Samples, batch: int) -> list[bytes]:
    found = []
    for start in range(0, len(samples), batch):
        x = samples.take(torch.arange(start, min(start + batch, len(samples))))
        found += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in x.numpy()]
    return found
