"""What a round writes into ``rounds.jsonl``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedstrata.client.task import ClientFailure
from fedstrata.core.layout import Layout
from fedstrata.core.piece import Reply
from fedstrata.engine.ledger import Cost
from fedstrata.engine.server import RoundPlan

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class RoundFacts:
    """A finished round.

    Attributes:
        round: zero-based; turn: as planned.
        accepted: replies; failures: clients without a usable one.
        cost: of the round; seconds: of training.
        updated: whether the model was moved.
    """

    round: int
    turn: RoundPlan
    accepted: Sequence[Reply]
    failures: Sequence[ClientFailure]
    cost: Cost
    seconds: float
    updated: bool


def round_row(facts: RoundFacts, layout: Layout) -> Row:
    """Return the row of a round, without scores."""
    losses = [(r.loss, r.samples) for r in facts.accepted if math.isfinite(r.loss)]
    weight = sum(n for _, n in losses)
    cost = facts.cost
    return {
        "round": facts.round,
        "cohort": [task.client for task in facts.turn.tasks],
        "replies": len(facts.accepted),
        "updated": facts.updated,
        "refused": [[f.client, f.code, f.message] for f in facts.failures],
        "loss": sum(x * n for x, n in losses) / weight if weight else None,
        "bytes_up": cost.up.payload,
        "bytes_down": cost.down.payload,
        "framing_up": cost.up.framing,
        "framing_down": cost.down.framing,
        "flops": cost.flops,
        "seconds": facts.seconds,
        "trained": trained_groups(facts.turn, layout),
        "activation_cache": tally(r.activation_cache_use for r in facts.accepted) or None,
    }


def trained_groups(turn: RoundPlan, layout: Layout) -> dict[str, int] | None:
    """Count, by layer group, the clients of a round that were to move it; None where all were to move everything."""
    trained = [task.plan.trained for task in turn.tasks]
    if all(names >= layout.trainable for names in trained):
        return None
    counts = {
        name: sum(not names.isdisjoint(group.names) for names in trained) for name, group in layout.groups.items()
    }
    return {name: count for name, count in counts.items() if count}


def tally(uses: Iterable[Mapping[str, int] | None]) -> dict[str, int]:
    """Return sums of counts by what they count, in the order of the first."""
    total: dict[str, int] = {}
    for counts in uses:
        for label, count in (counts or {}).items():
            total[label] = total.get(label, 0) + count
    return total
