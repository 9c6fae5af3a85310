"""States of pieces: server slots and clients' rows, as named parameters and tensors, and as flat mappings for files and
messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

from fedstrata.core.params import Params

State: TypeAlias = dict[str, "Params | Tensor"]


STATISTICS = "@statistics"


def flatten_state(state: State) -> dict[str, Params | Tensor]:
    """A state with the norm statistics of its parameters as entries of their own."""
    flat: dict[str, Params | Tensor] = {}
    for name, value in state.items():
        flat[name] = value
        if isinstance(value, Params) and value.buffers is not None and len(value.buffers):
            flat[name + STATISTICS] = value.buffers
    return flat


def restore_state(flat: Mapping[str, Params | Tensor]) -> State:
    """Back from :func:`flatten_state`."""
    state: State = {}
    for name, value in flat.items():
        if not name.endswith(STATISTICS):
            buffers = flat.get(name + STATISTICS)
            state[name] = (
                Params(value.flat, value.spec, buffers=buffers)
                if isinstance(value, Params) and isinstance(buffers, Params)
                else value
            )
    return state


def pack(states: Mapping[str, State], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All pieces' states and the stored tensors as one flat mapping of names."""
    row = {f"kept/{name}": tensor for name, tensor in kept.items()}
    for piece, state in states.items():
        for name, value in flatten_state(state).items():
            row[f"{piece}/{name}"] = value.flat if isinstance(value, Params) else value
    return row


def unpack(piece: str, template: State, row: Mapping[str, Tensor] | None) -> State:
    """One piece's state from a packed row.

    The template gives names and shapes, and the values where there is no row.
    """
    if row is None:
        return dict(template)
    stored: dict[str, Params | Tensor] = {}
    for name, value in flatten_state(template).items():
        tensor = row[f"{piece}/{name}"]
        stored[name] = Params(tensor, value.spec, buffers=_empty(value)) if isinstance(value, Params) else tensor
    return restore_state(stored)


def _empty(p: Params) -> Params | None:
    """Statistics of a model that has none."""
    return p.buffers if p.buffers is not None and not len(p.buffers) else None
