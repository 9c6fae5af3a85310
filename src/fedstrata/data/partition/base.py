"""Define which samples a client holds: listed, or derived when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedstrata.common.errors import DataError
from fedstrata.common.random_streams import stream
from fedstrata.data.types import Groups, Ints


@dataclass(frozen=True, eq=False)
class LabelView:
    """What a law may read: labels and groups, never features.

    Args:
        size: number of samples, N.
        labels: [N] int64 in [0, classes), or None where targets are no classes.
        classes: number of classes; 1 where targets are no classes.
        groups: natural groups by name.
    """

    size: int
    labels: Ints | None
    classes: int
    groups: Mapping[str, Groups] = field(default_factory=dict)

    def classed(self, law: str) -> Ints:
        """Return the labels, for a law that needs classes.

        Raises:
            DataError: targets that are no classes.
        """
        if self.labels is None:
            raise DataError(
                f"partition {law} deals by class, and the targets of this task are no classes; use iid,"
                " quantity(alpha=...) or natural."
            )
        return self.labels

    def by_class(self, law: str) -> list[Ints]:
        """Return one array of positions for each class, in data-set order."""
        labels = self.classed(law)
        order = np.argsort(labels, kind="stable").astype(np.int64)
        return np.split(order, np.cumsum(np.bincount(labels, minlength=self.classes))[:-1])


class Partition(Protocol):
    """Clients 0 .. len - 1 and their samples."""

    @property
    def law(self) -> str:
        """The law, as written."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user."""
        ...

    @property
    def lazy(self) -> bool:
        """True where clients are derived when needed: nothing may then iterate over all of them."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Clients as users know them: values of a client column, folder names; () where they have numbers only."""
        ...

    def __len__(self) -> int: ...
    def size(self, client: int) -> int:
        """Samples of one client."""
        ...

    def indices(self, client: int) -> Ints:
        """The client's positions in the training set, int64, in the order drawn."""
        ...

    def mirror(self, test: LabelView) -> Partition | None:
        """Deal the test set by the same rule (the same class table, groups, priors).

        None where a rule cannot do that.
        """
        ...


def check_client(client: int, clients: int) -> None:
    """Refuse an id that is not a client.

    Raises:
        DataError: outside 0 .. clients - 1.
    """
    if not 0 <= client < clients:
        raise DataError(f"client {client} does not exist; the federation has clients 0 to {clients - 1}.")


@dataclass(frozen=True, eq=False)
class ExplicitPartition:
    """A partition that lists its samples: one order and the offsets of the clients.

    Args:
        law: the law as the user wrote it.
        offsets: [C + 1] int64.
        order: [offsets[-1]] int64 positions.
        notes: for the user.
        twin: deals a test set by the same rule.
        names: of the clients, as users know them; () where they have numbers only.
    """

    law: str
    offsets: Ints
    order: Ints
    notes: tuple[str, ...] = ()
    twin: Callable[[LabelView], Partition | None] | None = None
    names: tuple[str, ...] = ()
    lazy: bool = field(default=False, init=False)

    @classmethod
    def of(
        cls,
        law: str,
        parts: Sequence[NDArray[np.int64]],
        *,
        notes: tuple[str, ...] = (),
        twin: Callable[[LabelView], Partition | None] | None = None,
        names: tuple[str, ...] = (),
    ) -> ExplicitPartition:
        """Build from one array of positions for each client."""
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return cls(law, offsets, np.concatenate(parts).astype(np.int64), notes, twin, names)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def size(self, client: int) -> int:
        """Samples of one client."""
        check_client(client, len(self))
        return int(self.offsets[client + 1] - self.offsets[client])

    def sizes(self) -> Ints:
        """[C] int64, the samples of every client."""
        return np.diff(self.offsets)

    def indices(self, client: int) -> Ints:
        """See :class:`Partition`."""
        check_client(client, len(self))
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def mirror(self, test: LabelView) -> Partition | None:
        """See :class:`Partition`."""
        return self.twin(test) if self.twin else None


@dataclass(frozen=True, eq=False)
class OverlappingPartition:
    """FedPart's independent draws: every client draws from the whole set, and is derived only when needed.

    Clients overlap.

    Args:
        law: the law as the user wrote it.
        pool: the set that clients draw from.
        clients: number of clients.
        each: samples of each client.
        alpha: Dirichlet concentration of a client's class shares; None draws uniformly.
        seed: client i draws from the stream (seed, purpose, i).
        purpose: "overlap", or "overlap-test" for the partition of the test set.
        tested: samples of a client's own test split; None for the same share of the test set.
    """

    law: str
    pool: LabelView
    clients: int
    each: int
    alpha: float | None
    seed: int
    purpose: str = "overlap"
    tested: int | None = None
    lazy: bool = field(default=True, init=False)
    names: tuple[str, ...] = field(default=(), init=False)
    notes: tuple[str, ...] = ()
    _classes: list[Ints] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_classes", [] if self.alpha is None else self.pool.by_class("overlap"))

    def __len__(self) -> int:
        return self.clients

    def size(self, client: int) -> int:
        """Samples of one client."""
        check_client(client, self.clients)
        return self.each

    def indices(self, client: int) -> Ints:
        """See :class:`Partition`."""
        check_client(client, self.clients)
        rng = stream(self.seed, self.purpose, client)
        if self.alpha is None:
            return rng.choice(self.pool.size, self.each, replace=False).astype(np.int64)
        shares = stream(self.seed, "overlap-shares", client).dirichlet(np.full(self.pool.classes, self.alpha))
        drawn = [self._draw(rng, self._classes[c], n) for c, n in enumerate(_rounded(shares, self.each)) if n]
        return rng.permutation(np.concatenate(drawn)).astype(np.int64)

    def _draw(self, rng: np.random.Generator, positions: Ints, count: int) -> Ints:
        """Draw without replacement, unless the count exceeds the class's whole pool."""
        if not len(positions):
            raise DataError(
                f"{self.law} asks for {count} samples of a class that the set does not hold; use overlap without alpha."
            )
        return rng.choice(positions, count, replace=count > len(positions)).astype(np.int64)

    def mirror(self, test: LabelView) -> Partition | None:
        """Draw the same share of the test set (500 of 50,000 gives 100 of 10,000), with the same class shares."""
        each = max(1, int(self.each * test.size / self.pool.size + 0.5)) if self.tested is None else self.tested
        if each > test.size:
            raise DataError(
                f"{self.law} tests each client on {each} samples, and the test set has {test.size}; use"
                f" test={test.size} or less."
            )
        return OverlappingPartition(self.law, test, self.clients, each, self.alpha, self.seed, "overlap-test")


def _rounded(shares: NDArray[np.float64], total: int) -> list[int]:
    """Round to FedPart's counts: int(total * share + 0.5) in class order, capped by what is left.

    The last class takes the remainder.
    """
    left, counts = total, []
    for share in shares[:-1]:
        counts.append(min(left, int(total * share + 0.5)))
        left -= counts[-1]
    return [*counts, left]
