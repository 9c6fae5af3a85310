"""Deal with label skew: equal sizes with class priors, shards, few classes; also unequal sizes and natural groups."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.random_streams import stream
from fedstrata.common.suggest import suggestion
from fedstrata.data.partition.base import ExplicitPartition, LabelView, Partition
from fedstrata.data.partition.laws import check_positive, equal_parts, num_clients
from fedstrata.data.types import Ints


@dataclass(frozen=True)
class DirichletEqual:
    """Label skew with equal sizes: floor(N / clients) samples each, class priors ~ Dir(alpha) for each client.

    Samples are given one at a time to a client drawn among those not yet full, from a class drawn from its prior over
    the classes that are not yet used up. A client whose prior has no mass left on those classes takes from them in
    proportion to what is left (counted in notes).

    Args:
        alpha: concentration, positive.
    Source: the splitter of FedDyn, which FedSMU uses (parameter 0.25, 0.6, 0.8); drawing again until a class has
        samples is the same law.
    """

    alpha: float

    def __post_init__(self) -> None:
        check_positive(self.alpha, "dirichlet_equal.alpha")

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        name = f"dirichlet_equal(alpha={self.alpha})"
        count = num_clients(pool, clients, name)
        rng = stream(seed, "partition", "dirichlet_equal")
        left = [list(rng.permutation(positions)) for positions in pool.by_class(name)]
        each = pool.size // count
        priors = rng.dirichlet(np.full(pool.classes, self.alpha), size=count)  # [C, classes]
        bins = _Bins(priors, np.array([len(positions) for positions in left]))
        parts: list[list[int]] = [[] for _ in range(count)]
        unfilled = list(range(count))
        for u, w in rng.random((each * count, 2)).tolist():
            position = int(u * len(unfilled))
            client = unfilled[position]
            parts[client].append(left[bins.draw(client, w)].pop())
            if len(parts[client]) == each:
                unfilled[position] = unfilled[-1]
                unfilled.pop()
        notes = (
            [f"{name}: {pool.size - each * count} of {pool.size} samples are left over and unused."]
            if pool.size > each * count
            else []
        )
        if bins.repairs:
            notes.append(
                f"{name}: {bins.repairs} samples went to clients whose classes were used up, in proportion to the"
                " classes that were left."
            )
        return ExplicitPartition.of(name, [np.array(part, dtype=np.int64) for part in parts], notes=tuple(notes))


class _Bins:
    """Draw classes for each client among those that still have samples; rebuilt when a class is used up."""

    def __init__(self, priors: NDArray[np.float64], sizes: NDArray[np.int64]) -> None:
        self.priors, self.left, self.repairs = priors, sizes.tolist(), 0
        self._rebuild()

    def _rebuild(self) -> None:
        open_ = np.array(self.left) > 0
        self.table = np.cumsum(self.priors * open_, axis=1).tolist()
        self.last = int(np.flatnonzero(open_).max(initial=-1))

    def draw(self, client: int, u: float) -> int:
        row = self.table[client]
        if row[-1] > 0:
            label = min(bisect_right(row, u * row[-1]), self.last)
        else:
            self.repairs += 1
            rest = np.cumsum(self.left).tolist()
            label = bisect_right(rest, u * rest[-1])
        self.left[label] -= 1
        if self.left[label] == 0:
            self._rebuild()
        return label


@dataclass(frozen=True)
class Shards:
    """Sharding: every class is cut into s * clients / classes consecutive shards, and a client gets s of them.

    A shuffled class table assigns them. It may name a class twice for one client, so a client has at most ``s``
    classes. The test set is cut with the same table.

    Args:
        s: shards a client, at least 1; s * clients must be a multiple of the number of classes.
    Source: FedFN harness, Sharding(s).
    """

    s: int

    def __post_init__(self) -> None:
        if self.s < 1:
            raise ConfigError(f"shards.s is {self.s}; a client gets at least 1 shard.")

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        name = f"shards(s={self.s})"
        count = num_clients(pool, clients, name)
        positions = pool.by_class(name)
        if self.s * count % pool.classes:
            step = pool.classes // int(np.gcd(count, pool.classes))
            raise DataError(
                f"partition {name}: {self.s} shards x {count} clients = {self.s * count} is no multiple of"
                f" {pool.classes} classes; with {count} clients s is a multiple of {step}."
            )
        per_class = self.s * count // pool.classes
        short = [c for c, members in enumerate(positions) if len(members) < per_class]
        if short:
            raise DataError(
                f"partition {name}: class {short[0]} has {len(positions[short[0]])} samples for {per_class} shards; use"
                " a smaller s or fewer clients."
            )
        rng = stream(seed, "partition", "shards")
        table = rng.permutation(np.tile(np.arange(pool.classes), per_class)).reshape(count, self.s)
        return ExplicitPartition.of(name, self._cut(table, positions, rng), twin=partial(self._twin, name, table, seed))

    def _twin(self, name: str, table: Ints, seed: int, test: LabelView) -> Partition:
        return ExplicitPartition.of(
            name, self._cut(table, test.by_class(name), stream(seed, "partition", "shards-test"))
        )

    def _cut(self, table: Ints, positions: list[Ints], rng: np.random.Generator) -> list[Ints]:
        per_class = table.size // len(positions)
        shards = [equal_parts(members, per_class) for members in positions]
        for pieces in shards:
            rng.shuffle(pieces)  # in place
        return [np.concatenate([shards[c].pop() for c in row]) for row in table]


@dataclass(frozen=True)
class Classes:
    """The pathological split: every client holds exactly ``k`` distinct classes.

    A client takes the k classes with the fewest holders so far, ties at random; a class is shuffled and cut equally
    among its holders.

    Args:
        k: classes a client, 1 to the number of classes.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"classes.k is {self.k}; a client holds at least 1 class.")

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        name = f"classes(k={self.k})"
        count = num_clients(pool, clients, name)
        positions = pool.by_class(name)
        filled = [c for c, members in enumerate(positions) if len(members)]
        if self.k > len(filled):
            raise DataError(f"partition {name}: the training set has {len(filled)} classes; k is at most that.")
        rng = stream(seed, "partition", "classes")
        holders: list[list[int]] = [[] for _ in positions]
        for client in range(count):
            load = np.array([len(holders[c]) for c in filled]) + rng.random(len(filled))  # in [0, 1): breaks ties only
            for c in np.argsort(load, kind="stable")[: self.k]:
                holders[filled[c]].append(client)
        parts: list[list[Ints]] = [[] for _ in range(count)]
        for c in filled:
            if len(holders[c]) > len(positions[c]):
                raise DataError(
                    f"partition {name}: class {c} has {len(positions[c])} samples for {len(holders[c])} clients; use"
                    " fewer clients or a smaller k."
                )
            for client, piece in zip(
                holders[c], equal_parts(rng.permutation(positions[c]), max(1, len(holders[c]))), strict=False
            ):
                parts[client].append(piece)
        idle = [c for c in filled if not holders[c]]
        notes = (
            (f"{name}: no client holds the classes {', '.join(map(str, idle))}; their samples are unused.",)
            if idle
            else ()
        )
        return ExplicitPartition.of(name, [rng.permutation(np.concatenate(part)) for part in parts], notes=notes)


@dataclass(frozen=True)
class Quantity:
    """Unequal sizes, equal label mix: sizes ~ Dir(alpha), cut at floor(cumsum * N) from one shuffled order.

    Args:
        alpha: concentration, positive.
        min: smallest client, at least 0; all sizes are redrawn until it holds.
        tries: redraws before giving up.
    """

    alpha: float
    min: int = 1
    tries: int = 10_000

    def __post_init__(self) -> None:
        check_positive(self.alpha, "quantity.alpha")
        if self.min < 0 or self.tries < 1:
            raise ConfigError(f"quantity: min is {self.min} and tries {self.tries}; write min >= 0 and tries >= 1.")

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        name = f"quantity(alpha={self.alpha}, min={self.min})"
        count = num_clients(pool, clients, name, self.min)
        rng = stream(seed, "partition", "quantity")
        for _ in range(self.tries):
            cuts = np.floor(np.cumsum(rng.dirichlet(np.full(count, self.alpha))) * pool.size).astype(np.int64)
            cuts[-1] = pool.size
            if np.diff(cuts, prepend=0).min() >= self.min:
                return ExplicitPartition(
                    name, np.concatenate([[0], cuts]).astype(np.int64), rng.permutation(pool.size).astype(np.int64)
                )
        raise DataError(
            f"partition {name}: {self.tries} draws over {count} clients and {pool.size} samples never gave every client"
            f" {self.min}; use a smaller min, a larger alpha or fewer clients."
        )


@dataclass(frozen=True)
class Natural:
    """The clients that the data define: writers, roles, domains, a client column or folder.

    Fewer ``clients`` than groups: a seeded choice of groups; the others are unused. The test set is dealt by the same
    groups where it has them.

    Args:
        by: name of the grouping where the data have several.
    """

    by: str | None = None

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        if not pool.groups:
            raise DataError(
                "partition natural: these data have no writers, roles, domains or client column; use iid or"
                " dirichlet(alpha=...)."
            )
        by = self.by or next(iter(pool.groups))
        if by not in pool.groups:
            raise DataError(
                f"partition natural: the data are grouped by {', '.join(pool.groups)}, not by"
                f" {by!r}.{suggestion(by, pool.groups)}"
            )
        groups, name = pool.groups[by], f"natural(by={by})"
        parts = split_by(groups.train, len(groups.names))
        kept = [g for g, part in enumerate(parts) if len(part)]
        notes = (
            [f"{name}: {len(parts) - len(kept)} of {len(parts)} groups have no training sample and are not clients."]
            if len(kept) < len(parts)
            else []
        )
        if clients is not None and not 1 <= clients <= len(kept):
            raise DataError(
                f"partition {name}: the data have {len(kept)} groups with training samples, and clients is {clients};"
                f" use 1 to {len(kept)}."
            )
        if clients is not None and clients < len(kept):
            chosen = stream(seed, "partition", "natural").choice(len(kept), clients, replace=False)
            notes.append(
                f"{name}: {clients} of {len(kept)} groups were chosen by the seed; the samples of the others are"
                " unused."
            )
            kept = [kept[g] for g in sorted(chosen.tolist())]
        return ExplicitPartition.of(
            name,
            [parts[g] for g in kept],
            notes=tuple(notes),
            twin=partial(_twin, name, by, kept),
            names=tuple(groups.names[g] for g in kept),
        )


def _twin(name: str, by: str, kept: list[int], test: LabelView) -> Partition | None:
    groups = test.groups.get(by)
    if groups is None or groups.test is None:
        return None
    parts = [split_by(groups.test, len(groups.names))[g] for g in kept]
    if not any(len(part) for part in parts):  # MNIST: no writer is in both sets
        return None
    return ExplicitPartition.of(name, parts)


def split_by(codes: Ints, groups: int) -> list[Ints]:
    """Return the positions of each code, in data-set order."""
    order = np.argsort(codes, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(codes, minlength=groups))[:-1])
