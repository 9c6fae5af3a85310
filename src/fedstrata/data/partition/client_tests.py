"""Define each client's test split, derived when it is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from fedstrata.common.errors import ConfigError
from fedstrata.common.random_streams import stream
from fedstrata.data.partition.base import LabelView, Partition
from fedstrata.data.types import Ints

Which = Literal["test", "train"]


class ClientTests(Protocol):
    """The samples that test each client."""

    @property
    def which(self) -> Which:
        """Whether positions index the test set or (removed from training) the training set."""
        ...

    def indices(self, client: int) -> tuple[Which, Ints]:
        """Return the set that the positions index, and the positions, int64."""
        ...


@dataclass(frozen=True, eq=False)
class PartitionedTest:
    """Deal the test set by the rule of the partition: the same class table, the same group."""

    twin: Partition
    which: Which = field(default="test", init=False)

    def indices(self, client: int) -> tuple[Which, Ints]:
        """See :class:`ClientTests`."""
        return "test", self.twin.indices(client)


@dataclass(frozen=True, eq=False)
class ClassMix:
    """Draw min(n_ic, size of the class in the test set) test samples of each class, without replacement.

    Each client draws independently. n_ic counts the client's samples of class c. Where targets are no classes, it draws
    min(n_i, test size). Clients overlap.
    Source: FedDr+, 5.2: the rule that fits the sizes of the released LDA splits.
    """

    partition: Partition
    train: LabelView
    test: LabelView
    seed: int
    which: Which = field(default="test", init=False)

    @cached_property
    def _positions(self) -> list[Ints]:
        return (
            [np.arange(self.test.size, dtype=np.int64)] if self.test.labels is None else self.test.by_class("own tests")
        )

    def indices(self, client: int) -> tuple[Which, Ints]:
        """See :class:`ClientTests`."""
        rng = stream(self.seed, "own-test", client)
        held = self.partition.indices(client)
        labels = np.zeros(len(held), dtype=np.int64) if self.train.labels is None else self.train.labels[held]
        counts = np.bincount(labels, minlength=len(self._positions))
        drawn = [
            rng.choice(pool, min(int(n), len(pool)), replace=False)
            for n, pool in zip(counts, self._positions, strict=True)
            if n and len(pool)
        ]
        return "test", np.concatenate(drawn).astype(np.int64) if drawn else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class OwnSplit:
    """Keep a share of the client's samples out of training to test it.

    int(share * n + 0.5) samples, at most n - 1: a client with one sample trains on it and has no test. By class:
    floor(share * n_c) of each class, the rest one each to the classes with the largest fractions, ties at random.

    Source: FedLAG (plain random, share 0.25), FedPhoenix's Office-31 (0.2).
    """

    partition: Partition
    labels: Ints | None
    share: float
    by: Literal["label", "random"]
    seed: int
    which: Which = field(default="train", init=False)

    def indices(self, client: int) -> tuple[Which, Ints]:
        """See :class:`ClientTests`."""
        held = self.partition.indices(client)
        total = kept_out(self.share, len(held))
        rng = stream(self.seed, "own-split", client)
        if self.labels is None or self.by == "random":
            return "train", held[np.sort(rng.permutation(len(held))[:total])]
        labels = self.labels[held]
        classes, counts = np.unique(labels, return_counts=True)
        counts_taken = np.floor(self.share * counts).astype(np.int64)
        if counts_taken.sum() < total:
            order = np.lexsort((rng.random(len(classes)), counts_taken - self.share * counts))  # largest fraction first
            counts_taken[order[: total - int(counts_taken.sum())]] += 1
        chosen = [rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in zip(classes, counts_taken, strict=True)]
        return "train", held[np.sort(np.concatenate(chosen))] if chosen else held[:0]


def kept_out(share: float, size: int) -> int:
    """Return int(share * size + 0.5), at most size - 1: at least one sample stays in training."""
    return max(0, min(int(share * size + 0.5), size - 1))


@dataclass(frozen=True)
class ClientTestSplit:
    """The test convention ``own(share=0.2)``: each client keeps a share of its samples for testing.

    The official test set, if any, joins the pool.

    Args:
        share: in (0, 1).
        by: "label" keeps the client's class mix, "random" does not.
    """

    share: float = 0.2
    by: Literal["label", "random"] = "label"

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(
                f"test own: share is {self.share}; it is a share of a client's samples, in (0, 1), such as 0.2."
            )
