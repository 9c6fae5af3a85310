"""What methods that train a part of the network share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedstrata.common.errors import MethodError
from fedstrata.core.layout import Layout, Names
from fedstrata.core.plan import Plan


def check_fixed_network(layout: Layout, reason: str) -> None:
    """Refuse a network that changes over the run, which its integer buffers show."""
    if layout.integers:
        raise MethodError(
            f"{reason}, and here the network changes from stage to stage. Leave one of the two pieces out."
        )


def joined_groups(layout: Layout, trained: Names, together: int) -> list[Names]:
    """Return the layer groups with trained parameters, shallow to deep, ``together`` neighbours at a time."""
    groups = [frozenset(g.names) for g in layout.groups.values() if trained.intersection(g.names)]
    return [frozenset[str]().union(*groups[i : i + together]) for i in range(0, len(groups), together)]


def training(plan: Plan) -> Mapping[str, Any]:
    """Return what a client trains and uploads under its plan, as changes to the plan of the round."""
    return {"train": plan.train, "upload": plan.upload, "phases": plan.phases}
