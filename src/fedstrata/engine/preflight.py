"""Refuse, before round 0, clients' states that cannot fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedstrata.core.state import State, state_tensors
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.server import Server, context
from fedstrata.storage import preflight


def preflight_states(parts: RunComponents) -> None:
    """Refuse the largest number of states that can exist, times the bytes of one, where that does not fit.

    Raises:
        StateError: with the arithmetic and the options.
    """
    setup, rules = parts.setup, parts.rules
    plan = replace(rules.base, cohort=(setup.eligible[0],))
    server = Server.start(parts.method, setup)
    for name, piece in parts.method.planners.items():
        if not piece.overrides("query"):  # a plan that depends on answers is not known yet
            plan = piece.plan(plan, context(server, rules, piece, f"plan.{name}"))
    templates = [State(piece.init_client(setup)) for piece in parts.method.pieces]
    size = sum(t.numel() * t.element_size() for state in templates for t in state_tensors(state).values())
    size += sum(4 * setup.layout.entries[n].shape.numel() for n in plan.at(0).client_local)
    if size:
        most = min(len(setup.eligible), setup.cohort * setup.rounds)
        preflight(most, size, Path(parts.config.out) if parts.config.client_state == "mapped" else None)
