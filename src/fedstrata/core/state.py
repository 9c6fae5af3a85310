"""States of pieces and clients: typed where pieces read them, flat where they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedstrata.core.params import Model, Params

STATISTICS = "@statistics"  # ends the stored name of a model's norm statistics
LOCAL = "kept/"  # begins the stored name of a tensor of the model that stays with the client


class State(dict[str, "Params | Tensor"]):
    """What a piece keeps between rounds, or sends beside the model, by name.

    >>> import torch
    >>> State(seen=torch.ones(())).tensor("seen")
    tensor(1.)
    """

    def params(self, name: str) -> Params:
        """Return the parameters of that name."""
        value = self[name]
        assert isinstance(value, Params), f"{name} is a tensor"
        return value

    def model(self, name: str) -> Model:
        """Return the model of that name, with its statistics."""
        value = self[name]
        assert isinstance(value, Model), f"{name} has no statistics"
        return value

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of that name."""
        value = self[name]
        assert isinstance(value, Tensor), f"{name} is parameters"
        return value


def state_tensors(state: Mapping[str, Params | Tensor]) -> dict[str, Tensor]:
    """Return the vectors and tensors of a state by name, statistics of models as separate entries."""
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        tensors[name] = value.flat if isinstance(value, Params) else value
        if isinstance(value, Model) and len(value.statistics):
            tensors[name + STATISTICS] = value.statistics.flat
    return tensors


def fill_state(template: State, tensors: Mapping[str, Tensor]) -> State:
    """Return a state like the template with the values that :func:`state_tensors` gave."""
    filled = State()
    for name, value in template.items():
        tensor = tensors[name]
        if isinstance(value, Model):
            statistics = value.statistics
            if len(statistics):
                statistics = statistics.new(tensors[name + STATISTICS])
            filled[name] = Model(Params(tensor, value.spec), statistics)
        else:
            filled[name] = Params(tensor, value.spec) if isinstance(value, Params) else tensor
    return filled


@dataclass(frozen=True)
class ClientState:
    """What one client stores between the rounds that it takes part in.

    Attributes:
        pieces: tensors of each piece's state, by piece and name; see :func:`state_tensors`.
        tensors: tensors of the model that stay with the client, by name.
    """

    pieces: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.pieces or self.tensors)

    def piece(self, name: str, template: State) -> State:
        """Return the state of one piece; the template gives names, shapes and, where nothing is stored, values."""
        return fill_state(template, self.pieces[name]) if name in self.pieces else State(template)

    def flat(self) -> dict[str, Tensor]:
        """Return all tensors under flat names, for storage and transport."""
        flat = {f"{LOCAL}{name}": tensor for name, tensor in self.tensors.items()}
        for piece, tensors in self.pieces.items():
            flat |= {f"{piece}/{name}": tensor for name, tensor in tensors.items()}
        return flat

    @classmethod
    def from_flat(cls, flat: Mapping[str, Tensor]) -> ClientState:
        """Return the state that :meth:`flat` gave."""
        pieces: dict[str, dict[str, Tensor]] = {}
        local: dict[str, Tensor] = {}
        for name, tensor in flat.items():
            if name.startswith(LOCAL):
                local[name.removeprefix(LOCAL)] = tensor
            else:
                piece, _, key = name.partition("/")
                pieces.setdefault(piece, {})[key] = tensor
        return cls(pieces, local)
