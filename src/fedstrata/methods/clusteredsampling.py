"""Clustered sampling: one client is drawn from each of K distributions over clients whose updates are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import psutil
import torch
from torch import Tensor

from fedstrata.common.errors import MethodError
from fedstrata.core.params import Params, zeros
from fedstrata.core.piece import Piece, ServerContext
from fedstrata.core.plan import QueryResult, Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import costs

if TYPE_CHECKING:
    from numpy.random import Generator

Distribution = dict[int, Fraction]  # client (its position among the eligible) -> probability; nothing is 0


@dataclass(frozen=True)
class ClusteredSampling(Piece):
    """The server keeps every client's last update (0 before its first), clusters clients by them, and draws one from
    each of K distributions.

    L1 distances between updates make a Ward tree. ``tree`` rows hands it the rows of the distance matrix as points, as
    the released code does; ``tree`` condensed hands it the distances themselves. It is cut where a cluster would weigh
    more than 1 / K, p_i = n_i / n. The K heaviest clusters become distributions, light to heavy, each client with mass
    K p_i; clients of the others fill these up to 1, in order, and may be split. All masses are exact fractions: every
    distribution sums to 1, every client's to K p_i. A client drawn twice trains twice and counts twice.

    A client with p_i above 1 / K fits into no distribution: it is refused, or, with ``heavy`` own, has floor(K p_i)
    distributions to itself, and what is left of its mass is dealt out as that of the others. That keeps both sums; it
    is then drawn that often in every round. INFERRED: the rule for heavy clients.

    Weights in the average are the run's: ``weighting`` samples as in the released code, uniform as in the paper, which
    is unbiased.

    Distances to and from every participant are computed anew (the released code forgets one of the two directions).

    Source: Fraboni et al. 2021, "Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection",
        Alg. 2.
    """

    source: ClassVar[str] = "Fraboni et al., ICML 2021, Alg. 2"
    needs: ClassVar[Literal["sum", "individuals"]] = "individuals"
    tree: Literal["rows", "condensed"] = "rows"
    heavy: Literal["refuse", "own"] = "refuse"

    def check(self, setup: Setup) -> None:
        clients, cohort = list(setup.eligible), setup.cohort
        bytes_kept = len(clients) * (4 * setup.layout.spec.total + 8 * len(clients))
        memory = psutil.virtual_memory().total
        if bytes_kept > memory:
            raise MethodError(
                f"clusteredsampling keeps an update of {setup.layout.spec.total:,} numbers for each of {len(clients):,}"
                f" clients and their distances: {bytes_kept / 1e9:.1f} GB, and this machine has {memory / 1e9:.1f} GB."
                " Take a smaller model or fewer clients."
            )
        sizes = [setup.samples.size(i) for i in clients]
        most = max(sizes)
        if self.heavy == "refuse" and most * cohort > sum(sizes):
            raise MethodError(
                f"clusteredsampling: client {clients[sizes.index(most)]} holds {most} of {sum(sizes)} samples, more"
                f" than one part in {cohort} (the cohort), so no distribution can hold its mass. Set heavy=own, which"
                f" draws it in every round, or cohort to {sum(sizes) // most} or less, or deal data more evenly."
            )

    def init(self, setup: Setup) -> State:
        nothing = zeros(setup.params).flat
        clients = list(setup.eligible)
        sizes = torch.tensor([setup.samples.size(i) for i in clients], dtype=torch.int64)
        distances = torch.zeros(len(clients), len(clients), dtype=torch.float64)
        updates: State = {f"update/{i}": nothing for i in clients}
        return {"sizes": sizes, "distances": distances, **updates}

    def sample(
        self, eligible: Sequence[int], slot: State, answers: QueryResult | None, rng: Generator, cohort: int
    ) -> Sequence[int]:
        sizes, distances = _tensor(slot, "sizes"), _tensor(slot, "distances")
        found = distributions(distances.numpy(), sizes.tolist(), cohort, self.tree, rng)
        return [eligible[draw(one, rng)] for one in found]

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        fresh: State = dict(slot)
        template = zeros(v.params)
        for reply, sent in zip(v.replies, v.sent, strict=True):
            move = (
                reply.delta if sent is v.params else reply.delta + (sent.pick(reply.delta) - v.params.pick(reply.delta))
            )
            fresh[f"update/{reply.client}"] = (template | move).flat
        clients = list(v.setup.eligible)
        seen = {reply.client for reply in v.replies}
        distances = _tensor(slot, "distances").clone()
        for at, client in enumerate(clients):
            if client in seen:
                row = torch.stack(
                    [
                        _distance(_tensor(fresh, f"update/{client}"), _tensor(fresh, f"update/{other}"))
                        for other in clients
                    ]
                )
                distances[at, :], distances[:, at] = row, row
        return step, fresh | {"distances": distances}

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        return {costs.LABEL: costs.clusteredsampling(setup.layout.spec.total, setup.cohort, len(setup.eligible))}


def distributions(
    distances: np.ndarray, sizes: Sequence[int], cohort: int, tree: Literal["rows", "condensed"], rng: Generator
) -> list[Distribution]:
    """One distribution over clients for each place.

    Args:
        distances: [C, C] float64, symmetric.
        sizes: [C] samples; a client above sum / cohort has distributions to itself.
        cohort: how many distributions.
        tree: what Ward's method is given.
        rng: shuffles the clients of the clusters that are poured.
    Returns:
        ``cohort`` mappings from position to probability, which sum to 1 each; those of one client sum to cohort * its
        share.
    """
    total = sum(sizes)
    mass = [Fraction(cohort * n, total) for n in sizes]
    alone: list[Distribution] = [{i: Fraction(1)} for i, m in enumerate(mass) if m > 1 for _ in range(m.__floor__())]
    mass = [m - m.__floor__() if m > 1 else m for m in mass]
    cohort -= len(alone)
    clusters = sorted(cut(distances, mass, tree), key=lambda c: (sum(mass[i] for i in c), c))
    poured, kept = clusters[: len(clusters) - cohort], clusters[len(clusters) - cohort :]
    found: list[Distribution] = [{i: mass[i] for i in cluster if mass[i]} for cluster in kept]
    room = [1 - sum(one.values()) for one in found]
    place = 0
    for cluster in poured:
        for i in rng.permutation(cluster).tolist():
            left = mass[i]
            while left:
                while not room[place]:
                    place += 1
                part = min(room[place], left)
                found[place][i] = found[place].get(i, Fraction(0)) + part
                room[place] -= part
                left -= part
    return found + alone


def cut(distances: np.ndarray, mass: Sequence[Fraction], tree: Literal["rows", "condensed"]) -> list[list[int]]:
    """Clusters of clients, the largest subtrees whose masses sum to at most 1."""
    from scipy.cluster.hierarchy import linkage  # only here  # noqa: PLC0415
    from scipy.spatial.distance import pdist, squareform  # noqa: PLC0415

    if len(mass) == 1:
        return [[0]]
    merges = linkage(pdist(distances) if tree == "rows" else squareform(distances, checks=False), "ward")
    members: list[list[int]] = [[i] for i in range(len(mass))]
    weight = list(mass)
    standing = set(range(len(mass)))
    for left, right in merges[:, :2].astype(int).tolist():
        members.append(sorted(members[left] + members[right]))
        weight.append(weight[left] + weight[right])
        if weight[-1] <= 1:
            standing = standing - {left, right} | {len(members) - 1}
    return [members[i] for i in standing]


def draw(distribution: Distribution, rng: Generator) -> int:
    """One client; exact but for the 53 bits of the number drawn."""
    left = Fraction(rng.random())
    for client, share in distribution.items():
        left -= share
        if left < 0:
            return client
    raise AssertionError("a distribution sums to 1")


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """L1, float64."""
    return torch.zeros((), dtype=torch.float64) if a is b else (a - b).abs_().sum(dtype=torch.float64)


def _tensor(state: State, name: str) -> Tensor:
    found = state[name]
    assert isinstance(found, Tensor)
    return found
