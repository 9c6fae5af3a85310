"""The calendar of rounds that train one layer group at a time, and what such rounds cost by three formulas.

Exact rational numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple


class Calendar(NamedTuple):
    """Cycles of ``warmup`` rounds of the whole model, then each group for ``repeat`` rounds; the first warm-up lasts
    ``first`` rounds.

    >>> [Calendar(groups=2, repeat=1, warmup=1, first=2).turn(t) for t in range(7)]
    [None, None, (0, 0), (0, 1), None, (1, 0), (1, 1)]
    """

    groups: int
    repeat: int
    warmup: int
    first: int

    def rounds(self, cycles: int) -> int:
        """How long that many whole cycles last."""
        return self.first + (cycles - 1) * self.warmup + cycles * self.groups * self.repeat

    def turn(self, t: int) -> tuple[int, int] | None:
        """(cycle, turn) of round t, counted from 0; None is the whole model."""
        late = t - self.first + self.warmup  # as if the first warm-up were like the others
        cycle, place = divmod(late, self.warmup + self.groups * self.repeat)
        if t < self.first or place < self.warmup:
            return None
        return cycle, (place - self.warmup) // self.repeat


def share(active: Iterable[int | None], costs: Sequence[Fraction]) -> Fraction:
    """Cost of these rounds in rounds of the whole model, each.

    Args:
        active: the group of each round, None for the whole model.
        costs: of a round of each group, in rounds of the whole model.
    """
    each = [Fraction(1) if group is None else costs[group] for group in active]
    return sum(each, Fraction(0)) / len(each)


def sent(sizes: Sequence[int]) -> list[Fraction]:
    """Uplink of a round of each group: its share of the parameters."""
    return [Fraction(n, sum(sizes)) for n in sizes]


def idealised(groups: int) -> list[Fraction]:
    """Forward F, backward 2F times a mean depth of one half: 2/3 of 3F (the paper's eq. 5)."""
    return [Fraction(2, 3)] * groups


def suffix2x(forward: Sequence[int]) -> list[Fraction]:
    """Forward F, and twice the forward FLOPs of every layer from the group to the loss, over 3F.

    ``forward``: FLOPs by group, shallow to deep.
    """
    total = sum(forward)
    return [Fraction(total + 2 * sum(forward[g:]), 3 * total) for g in range(len(forward))]


def exact(blocks: Sequence[Sequence[int]]) -> list[Fraction]:
    """Forward F, input gradients of all layers behind the block's first, weight gradients of the block, over 3F less
    the stem's input gradient.

    Args:
        blocks: forward FLOPs of the layers that train together, shallow to deep.

    >>> exact([[1], [2], [3]])  # of 3 * 6 - 1
    [Fraction(12, 17), Fraction(11, 17), Fraction(9, 17)]
    >>> exact([[1, 2], [3]])[0]  # 6 forward, 2 + 3 input gradients, 1 + 2 weight gradients
    Fraction(14, 17)
    """
    layers = [n for block in blocks for n in block]
    total, found, start = sum(layers), [], 0
    for block in blocks:
        found.append(Fraction(total + sum(layers[start + 1 :]) + sum(block), 3 * total - layers[0]))
        start += len(block)
    return found
