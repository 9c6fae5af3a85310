"""Deal one data set to clients. Every sample is used at most once, except by ``overlap``.

A law is a frozen record of its settings with one method, ``deal(pool, clients, seed)``; all draws come from the stream
(seed, "partition", law).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.random_streams import stream
from fedstrata.data.partition.base import ExplicitPartition, LabelView, OverlappingPartition, Partition
from fedstrata.data.types import Ints

CLIENTS = 20  # the default, where neither the user nor the data give a number


class Law(Protocol):
    """A rule that deals samples to clients."""

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """Deal the pool to clients; None is the data's number of clients."""
        ...


def check_positive(value: float, where: str) -> None:
    """Refuse a concentration that is not a positive finite number.

    Raises:
        ConfigError: the message names the setting and the value.
    """
    if not (0 < value < float("inf")):
        raise ConfigError(
            f"{where} is {value}; it is a positive number, such as 0.3 (small: clients differ; large: clients are"
            " alike)."
        )


def num_clients(pool: LabelView, clients: int | None, law: str, least: int = 1) -> int:
    """Return the number of clients; each needs at least ``least`` samples.

    Raises:
        DataError: more clients than the data suffice for.
    """
    count = CLIENTS if clients is None else clients
    if count < 1:
        raise DataError(f"clients is {count}; a federation has at least 1.")
    if count * least > pool.size:
        raise DataError(
            f"partition {law}: {count} clients with at least {least} samples each need {count * least}, and the"
            f" training set has {pool.size}; use at most {pool.size // max(1, least)}"
            f" clients{', or a smaller min' if least > 1 else ', or overlap(size=...)'}."
        )
    return count


@dataclass(frozen=True)
class Iid:
    """floor(N / clients) samples each, uniform, disjoint; the remainder is dropped.

    Source: FedFN harness and FedPhoenix launcher, iid split.
    """

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        count = num_clients(pool, clients, "iid")
        each = pool.size // count
        order = stream(seed, "partition", "iid").permutation(pool.size)[: each * count].astype(np.int64)
        rest = pool.size - each * count
        notes = (f"iid: {rest} of {pool.size} samples are left over and unused.",) if rest else ()
        return ExplicitPartition("iid", np.arange(count + 1, dtype=np.int64) * each, order, notes)


def _everything(test: LabelView) -> Partition:
    return Pooled().deal(test, 1, 0)


@dataclass(frozen=True)
class Pooled:
    """One client that holds everything: the centralised control."""

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        if clients not in (None, 1):
            raise DataError(
                f"partition pooled is the centralised control with one client, and clients is {clients}; leave clients"
                " out or set clients=1."
            )
        return ExplicitPartition(
            "pooled", np.array([0, pool.size], dtype=np.int64), np.arange(pool.size, dtype=np.int64), twin=_everything
        )


@dataclass(frozen=True)
class Dirichlet:
    """LDA: label skew with unequal sizes.

    For each class in order: shuffle its samples, draw shares ~ Dir(alpha), set them to 0 for clients that already hold
    N / clients samples, renormalise, cut at floor(cumsum(shares) * class size). All classes are redrawn until the
    smallest client has ``min`` samples.

    Args:
        alpha: concentration, positive; small means that clients differ.
        min: smallest client, at least 0.
        tries: redraws before giving up.
    Source: FedFN harness, LDA(alpha), with its minimum of 10; FedLAG uses 40.
    """

    alpha: float
    min: int = 10
    tries: int = 10_000

    def __post_init__(self) -> None:
        check_positive(self.alpha, "dirichlet.alpha")
        if self.min < 0 or self.tries < 1:
            raise ConfigError(f"dirichlet: min is {self.min} and tries {self.tries}; write min >= 0 and tries >= 1.")

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        name = f"dirichlet(alpha={self.alpha}, min={self.min})"
        count = num_clients(pool, clients, name, self.min)
        classes = pool.by_class(name)
        rng = stream(seed, "partition", "dirichlet")
        best = -1
        for _ in range(self.tries):
            cuts = self._cuts([len(c) for c in classes], pool.size / count, count, rng)
            smallest = -1 if cuts is None else int(np.diff(cuts, axis=1, prepend=0).sum(0).min())
            if cuts is not None and smallest >= self.min:
                return self._listed(name, classes, cuts, rng)
            best = max(best, smallest)
        raise DataError(
            f"partition {name}: {self.tries} draws over {count} clients and {pool.size} samples of {pool.classes}"
            f" classes never gave every client {self.min} samples (the best draw's smallest client had {max(best, 0)};"
            f" the mean is {pool.size / count:.1f}); use a smaller min, a larger alpha, fewer clients or more tries, or"
            " dirichlet_equal(alpha=...)."
        )

    def _cuts(self, sizes: list[int], full: float, count: int, rng: np.random.Generator) -> Ints | None:
        """Return cut points [classes, clients]; the last column is the class size.

        None if a draw gave no open client any share.
        """
        held = np.zeros(count, dtype=np.int64)
        cuts = np.zeros((len(sizes), count), dtype=np.int64)
        for c, size in enumerate(sizes):
            shares = rng.dirichlet(np.full(count, self.alpha))
            shares[held >= full] = 0.0
            total = shares.sum()
            if size and not total > 0:  # a tiny alpha can put all mass on full clients: dividing would give NaN
                return None
            if size:
                cuts[c] = np.floor(np.cumsum(shares / total) * size)
                cuts[c, -1] = size  # truncation leaves the rest to the last client
                held += np.diff(cuts[c], prepend=0)
        return cuts

    def _listed(self, name: str, classes: list[Ints], cuts: Ints, rng: np.random.Generator) -> ExplicitPartition:
        pieces = [np.split(rng.permutation(positions), cut[:-1]) for positions, cut in zip(classes, cuts, strict=True)]
        parts = [rng.permutation(np.concatenate(column)).astype(np.int64) for column in zip(*pieces, strict=True)]
        return ExplicitPartition.of(name, parts)


@dataclass(frozen=True)
class Overlap:
    """Independent draws: each client draws ``size`` samples from the whole set, without replacement.

    Clients overlap. A client is derived when it is needed: a million registered clients cost nothing.

    Args:
        size: samples of each client, at least 1.
        alpha: concentration of a client's class shares, or none for uniform draws.
        test: samples of a client's own test split; none for the same share of the test set (500 of 50,000 gives 100 of
            10,000).
    Source: FedPart, experimental settings (500 samples a client; alpha 1 and 0.1; news 3,000 with 300 for testing).
    """

    size: int
    alpha: float | None = None
    test: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"overlap.size is {self.size}; a client draws at least 1 sample.")
        if self.test is not None and self.test < 1:
            raise ConfigError(f"overlap.test is {self.test}; a client tests on at least 1 sample, or leave it out.")
        if self.alpha is not None:
            check_positive(self.alpha, "overlap.alpha")

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        count = CLIENTS if clients is None else clients
        if count < 1:
            raise DataError(f"clients is {count}; a federation has at least 1.")
        if self.size > pool.size:
            raise DataError(
                f"overlap(size={self.size}) draws without replacement from {pool.size} samples; use size={pool.size} or"
                " less."
            )
        name = f"overlap(size={self.size})" if self.alpha is None else f"overlap(size={self.size}, alpha={self.alpha})"
        return OverlappingPartition(name, pool, count, self.size, self.alpha, seed, tested=self.test)


def equal_parts(positions: NDArray[np.int64], parts: int) -> list[Ints]:
    """Split into consecutive parts of equal size; the first parts take one more each of the remainder."""
    return [piece.astype(np.int64) for piece in np.array_split(positions, parts)]
