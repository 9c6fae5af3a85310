"""Find samples with equal content: in training and test, at several clients, at one client, or with two labels."""

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
    """Two samples with equal content.

    Attributes:
        kind: train-test (trained on and tested on), clients (held by two), labels (of two classes).
        first, second: the holder (a client, the server's test set, or None for training samples that no given client
            holds), and the position in the training set or in the test set.
    """

    kind: Kind
    first: tuple[Owner, int]
    second: tuple[Owner, int]


@dataclass(frozen=True)
class Duplicates:
    """Counts of samples with equal content.

    Attributes:
        train_test: test samples whose content is also trained on: of the test set against the training set, or, where
            clients have test splits, of those against the training samples of all given clients.
        within_train: training samples whose content occurs earlier in the training set.
        across_clients: contents held by more than one of the given clients.
        two_labels: contents of the training set with more than one class.
        examples: up to SHOWN of each kind, in order.
        tested: test samples that were compared.
    """

    train_test: int
    within_train: int
    across_clients: int
    two_labels: int = 0
    examples: tuple[Copy, ...] = ()
    tested: int = 0


def duplicates(federation: Federation, clients: Sequence[int] | None = None, batch: int = 1024) -> Duplicates:
    """Count equal features by content hash (exact equality of bytes as read).

    Every sample is read once, which may take long.

    Args:
        federation: any.
        clients: clients to compare; default all, at most 10,000.
        batch: samples hashed at a time.
    Raises:
        DataError: more than 10,000 clients; give a range.
    """
    client_ids = range(federation.clients) if clients is None else clients
    if len(client_ids) > MOST:
        raise DataError(f"duplicates() over {len(client_ids)} clients; give clients=range(...) of at most 10,000.")
    train = _digests(federation.train, batch)
    holders: dict[int, int] = {}  # position -> the first client that holds it
    owners: dict[bytes, tuple[int, int]] = {}
    shared: dict[bytes, Copy] = {}
    for client in client_ids:
        for row in sorted(set(federation.partition.indices(client).tolist())):
            holders.setdefault(row, client)
            first = owners.setdefault(train[row], (client, row))
            if first[0] != client:
                shared.setdefault(train[row], Copy("clients", first, (client, row)))
    first_rows, repeats, mixed = _within(federation, train, holders)
    leaks, tested = _leaks(federation, train, first_rows, holders, client_ids, batch)
    examples = (*leaks[:SHOWN], *list(shared.values())[:SHOWN], *list(mixed.values())[:SHOWN])
    return Duplicates(len(leaks), repeats, len(shared), len(mixed), examples, tested)


def _within(
    federation: Federation, train: list[bytes], holders: dict[int, int]
) -> tuple[dict[bytes, int], int, dict[bytes, Copy]]:
    """Return the first position of each content, the number of repeats, and contents with two classes."""
    first_rows: dict[bytes, int] = {}
    mixed: dict[bytes, Copy] = {}
    labels = federation.train.y.tolist()
    for row, digest in enumerate(train):
        first = first_rows.setdefault(digest, row)
        if labels[first] != labels[row] and federation.task.has_classes:
            mixed.setdefault(digest, Copy("labels", (holders.get(first), first), (holders.get(row), row)))
    return first_rows, len(train) - len(first_rows), mixed


def _leaks(
    federation: Federation,
    train: list[bytes],
    first_rows: dict[bytes, int],
    holders: dict[int, int],
    client_ids: Sequence[int],
    batch: int,
) -> tuple[list[Copy], int]:
    """Return test samples that are trained on, and the number of test samples."""
    if federation.official is not None:
        test_digests = _digests(federation.official, batch)
        copies = [
            Copy("train-test", (holders.get(first_rows[d]), first_rows[d]), ("test set", row))
            for row, d in enumerate(test_digests)
            if d in first_rows
        ]
        return copies, len(test_digests)
    trained: dict[bytes, tuple[Owner, int]] = {}
    for client in client_ids:
        for row in federation.training(client).tolist():
            trained.setdefault(train[row], (client, row))
    test_rows = list(_client_test_rows(federation, client_ids))
    return [
        Copy("train-test", trained[train[row]], (client, row)) for client, row in test_rows if train[row] in trained
    ], len(test_rows)


def _client_test_rows(federation: Federation, client_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    for client in client_ids:
        test_rows = federation.testing(client)
        if test_rows is not None:
            yield from ((client, row) for row in test_rows[1].tolist())


def _digests(samples: Samples, batch: int) -> list[bytes]:
    digests = []
    for start in range(0, len(samples), batch):
        x = samples.take(torch.arange(start, min(start + batch, len(samples))))
        digests += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in x.numpy()]
    return digests
