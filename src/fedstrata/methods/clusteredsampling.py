"""Clustered sampling: one client is drawn from each of K distributions over clients whose updates are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np
import psutil
import torch
from torch import Tensor

from fedstrata.common.errors import MethodError
from fedstrata.core.params import Model, zeros
from fedstrata.core.piece import Piece, Reply, ServerContext, move_of
from fedstrata.core.plan import Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice, costs
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Row, no_limit

if TYPE_CHECKING:
    from numpy.random import Generator

Distribution = dict[int, Fraction]  # client (its position among the eligible) -> probability; nothing is 0


@dataclass(frozen=True)
class ClusteredSampling(Piece):
    """Cluster clients by their last updates (0 before the first), and draw one from each of K distributions over them.

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

    tree: Literal["rows", "condensed"] = "rows"
    heavy: Literal["refuse", "own"] = "refuse"

    def check(self, setup: Setup) -> None:
        check_memory(setup)
        if self.heavy == "refuse":
            check_sizes(setup)

    def init_server(self, setup: Setup) -> State:
        sizes = torch.tensor([setup.samples.size(i) for i in setup.eligible], dtype=torch.int64)
        distances = torch.zeros(len(sizes), len(sizes), dtype=torch.float64)
        nothing = zeros(setup.model).flat
        return State({"sizes": sizes, "distances": distances, **{f"update/{i}": nothing for i in setup.eligible}})

    def sample(self, eligible: Sequence[int], ctx: ServerContext) -> Sequence[int]:
        sizes, distances = ctx.state.tensor("sizes").tolist(), ctx.state.tensor("distances").numpy()
        drawn = distributions(distances, sizes, ctx.setup.cohort, self.tree, ctx.rng)
        return [eligible[draw(one, ctx.rng)] for one in drawn]

    def observe(self, replies: Sequence[Reply], ctx: ServerContext) -> State:
        updates = {f"update/{r.client}": moved(r, sent, ctx) for r, sent in zip(replies, ctx.sent, strict=True)}
        state, distances = State({**ctx.state, **updates}), ctx.state.tensor("distances").clone()
        for at, client in enumerate(ctx.setup.eligible):
            if f"update/{client}" in updates:
                mine = state.tensor(f"update/{client}")
                row = torch.stack([distance(mine, state.tensor(f"update/{i}")) for i in ctx.setup.eligible])
                distances[at, :], distances[:, at] = row, row
        return State({**state, "distances": distances})

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        return {costs.LABEL: costs.clusteredsampling(setup.layout.spec.total, setup.cohort, len(setup.eligible))}


def check_memory(setup: Setup) -> None:
    """Refuse a run whose updates and distances do not fit this machine."""
    clients, numbers = len(setup.eligible), setup.layout.spec.total
    kept, memory = clients * (4 * numbers + 8 * clients), psutil.virtual_memory().total
    if kept > memory:
        raise MethodError(
            f"clusteredsampling keeps an update of {numbers:,} numbers for each of {clients:,} clients and their"
            f" distances: {kept / 1e9:.1f} GB, and this machine has {memory / 1e9:.1f} GB. Take a smaller model or"
            " fewer clients."
        )


def check_sizes(setup: Setup) -> None:
    """Refuse a client that is too heavy for one distribution."""
    sizes = {client: setup.samples.size(client) for client in setup.eligible}
    heaviest, total = max(sizes, key=lambda client: sizes[client]), sum(sizes.values())
    most = sizes[heaviest]
    if most * setup.cohort > total:
        raise MethodError(
            f"clusteredsampling: client {heaviest} holds {most} of {total} samples, more than one part in"
            f" {setup.cohort} (the cohort), so no distribution can hold its mass. Set heavy=own, which draws it in"
            f" every round, or cohort to {total // most} or less, or deal data more evenly."
        )


def moved(reply: Reply, sent: Model, ctx: ServerContext) -> Tensor:
    """Return [P]: where a client ended, relative to the server's model; 0 where it sent nothing."""
    return (zeros(ctx.model) | move_of(reply, sent, ctx.model)).flat


def distributions(
    distances: np.ndarray, sizes: Sequence[int], cohort: int, tree: Literal["rows", "condensed"], rng: Generator
) -> list[Distribution]:
    """Return one distribution over clients for each cohort index.

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
    filled: list[Distribution] = [{i: mass[i] for i in cluster if mass[i]} for cluster in kept]
    room = [1 - sum(one.values()) for one in filled]
    at = 0
    for cluster in poured:
        for i in rng.permutation(cluster).tolist():
            left = mass[i]
            while left:
                while not room[at]:
                    at += 1
                part = min(room[at], left)
                filled[at][i] = filled[at].get(i, Fraction(0)) + part
                room[at] -= part
                left -= part
    return filled + alone


def cut(distances: np.ndarray, mass: Sequence[Fraction], tree: Literal["rows", "condensed"]) -> list[list[int]]:
    """Return clusters of clients: the largest subtrees whose masses sum to at most 1."""
    from scipy.cluster.hierarchy import linkage  # only here  # noqa: PLC0415
    from scipy.spatial.distance import pdist, squareform  # noqa: PLC0415

    if len(mass) == 1:
        return [[0]]
    merges = linkage(pdist(distances) if tree == "rows" else squareform(distances, checks=False), "ward")
    members: list[list[int]] = [[i] for i in range(len(mass))]
    weight = list(mass)
    clusters = set(range(len(mass)))
    for left, right in merges[:, :2].astype(int).tolist():
        members.append(sorted(members[left] + members[right]))
        weight.append(weight[left] + weight[right])
        if weight[-1] <= 1:
            clusters = clusters - {left, right} | {len(members) - 1}
    return [members[i] for i in clusters]


def draw(distribution: Distribution, rng: Generator) -> int:
    """Draw one client; exact but for the 53 bits of the number drawn."""
    left = Fraction(rng.random())
    for client, share in distribution.items():
        left -= share
        if left < 0:
            return client
    raise AssertionError("a distribution sums to 1")


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the L1 distance in float64."""
    return torch.zeros((), dtype=torch.float64) if a is b else (a - b).abs_().sum(dtype=torch.float64)


ROW = Row(
    ClusteredSampling,
    "one client from each of K clusters of similar updates",
    ("clusteredsampling(heavy=own)", "clusteredsampling(tree=condensed, heavy=own)"),
    no_limit("who takes part follows from clusters, whichever setting is taken", "clusteredsampling"),
    cite=("fraboni2021clustered",),
    source="Fraboni et al., ICML 2021, Alg. 2",
    family="resets",
    advice=(
        Rule(
            "later",
            advice.sampled,
            advice.SAMPLED + ": cohorts are drawn so that their clients are unlike each other",
        ),
        Rule(
            "against",
            lambda s: s.cohort >= s.eligible,
            "all {s.eligible} clients take part in every round, so there is no cohort to choose",
        ),
    ),
    rank=260,
)
