"""The calendar of rounds that train one layer group at a time, and what such rounds cost by three formulas.

Costs are exact rational numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from fedstrata.common import random_streams
from fedstrata.core.layout import Names
from fedstrata.core.plan import Setup


class Calendar(NamedTuple):
    """Cycles of ``warmup`` rounds of the whole model, then each group for ``repeat`` rounds.

    The first warm-up lasts ``first`` rounds.

    >>> [Calendar(groups=2, repeat=1, warmup=1, first=2).turn(t) for t in range(7)]
    [None, None, (0, 0), (0, 1), None, (1, 0), (1, 1)]
    """

    groups: int
    repeat: int
    warmup: int
    first: int

    def rounds(self, cycles: int) -> int:
        """Count the rounds of that many whole cycles."""
        return self.first + (cycles - 1) * self.warmup + cycles * self.groups * self.repeat

    def turn(self, t: int) -> tuple[int, int] | None:
        """Return (cycle, turn) of round t, counted from 0; None is the whole model."""
        late = t - self.first + self.warmup  # as if the first warm-up were like the others
        cycle, at = divmod(late, self.warmup + self.groups * self.repeat)
        if t < self.first or at < self.warmup:
            return None
        return cycle, (at - self.warmup) // self.repeat


def position(order: str, cycle: int, turn: int, t: int, groups: int, seed: int) -> int:
    """Return the group that trains at a turn of a cycle, which is round t, under an order of FedPart."""
    if order in ("random_round", "random_client"):
        return int(random_streams.stream(seed, "fedpart.round", t).integers(groups))
    if order == "random":
        return int(random_streams.stream(seed, "fedpart.cycle", cycle).permutation(groups)[turn])
    return groups - 1 - turn if order == "reverse" else turn


def formulas(
    active: Sequence[int | None], blocks: Sequence[Names], forward: Mapping[str, int], setup: Setup, *, mean: bool
) -> dict[str, float]:
    """Return what a run costs over FedAvg, by label.

    Args:
        active: the block of each round, None for the whole model.
        blocks: what trains in one round each, shallow to deep.
        forward: FLOPs of one sample's forward pass, by layer group.
        setup: of the run.
        mean: clients draw their blocks, so that a round costs the mean over all.
    """
    groups, whole = setup.layout.groups, setup.load(setup.layout.parameters).flops
    flops = [
        [forward[name] for name, group in groups.items() if name in forward and block.issuperset(group.names)]
        for block in blocks
    ]
    sizes = [sum(g.numel for g in groups.values() if block.issuperset(g.names)) for block in blocks]
    costs = {
        "uplink over FedAvg's": sent(sizes),
        "training FLOPs over FedAvg's, idealised": idealised(len(blocks)),
        "training FLOPs over FedAvg's, suffix2x": suffix2x([sum(block) for block in flops]),
        "training FLOPs over FedAvg's, exact": exact(flops),
        "training FLOPs over FedAvg's, measured": [Fraction(setup.load(block).flops / whole) for block in blocks],
    }
    if mean:
        costs = {name: [sum(cost, Fraction(0)) / len(cost)] * len(cost) for name, cost in costs.items()}
    return {name: float(share(active, cost)) for name, cost in costs.items()}


def share(active: Iterable[int | None], costs: Sequence[Fraction]) -> Fraction:
    """Return the cost of these rounds in rounds of the whole model, each.

    Args:
        active: the group of each round, None for the whole model.
        costs: of a round of each group, in rounds of the whole model.
    """
    each = [Fraction(1) if group is None else costs[group] for group in active]
    return sum(each, Fraction(0)) / len(each)


def sent(sizes: Sequence[int]) -> list[Fraction]:
    """Return the uplink of a round of each group: its share of the parameters."""
    return [Fraction(n, sum(sizes)) for n in sizes]


def idealised(groups: int) -> list[Fraction]:
    """Count forward F, backward 2F times a mean depth of one half: 2/3 of 3F (the paper's eq. 5)."""
    return [Fraction(2, 3)] * groups


def suffix2x(forward: Sequence[int]) -> list[Fraction]:
    """Count forward F, and twice the forward FLOPs of every layer from the group to the loss, over 3F.

    ``forward``: FLOPs by group, shallow to deep.
    """
    total = sum(forward)
    return [Fraction(total + 2 * sum(forward[g:]), 3 * total) for g in range(len(forward))]


def exact(blocks: Sequence[Sequence[int]]) -> list[Fraction]:
    """Count forward F, input gradients behind the block's first layer, and weight gradients of the block.

    They are over 3F less the stem's input gradient.

    Args:
        blocks: forward FLOPs of the layers that train together, shallow to deep.

    >>> exact([[1], [2], [3]])  # of 3 * 6 - 1
    [Fraction(12, 17), Fraction(11, 17), Fraction(9, 17)]
    >>> exact([[1, 2], [3]])[0]  # 6 forward, 2 + 3 input gradients, 1 + 2 weight gradients
    Fraction(14, 17)
    """
    layers = [n for block in blocks for n in block]
    total, costs, start = sum(layers), [], 0
    for block in blocks:
        costs.append(Fraction(total + sum(layers[start + 1 :]) + sum(block), 3 * total - layers[0]))
        start += len(block)
    return costs
