"""The character LSTM for Shakespeare."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import GroupSpec
from fedstrata.data.types import Task
from fedstrata.models.blocks import Layer, Model, drop_layer, fill
from fedstrata.models.task import outputs, tokens

_FUSED = (torch.ops.aten.mkldnn_rnn_layer, torch.ops.aten.mkldnn_rnn_layer_backward)


def _products(x: Sequence[int], weight: Sequence[int], recurrent: Sequence[int]) -> int:
    """FLOPs of all steps of one LSTM layer: x [L, B, D], weight [4H, D], recurrent [4H, H].

    A multiplication and an addition are two.
    """
    return 2 * x[0] * x[1] * weight[0] * (weight[1] + recurrent[1])


def _count_forward(x: Sequence[int], weight: Sequence[int], recurrent: Sequence[int], *_: object, **__: object) -> int:
    return _products(x, weight, recurrent)


def _count_backward(x: Sequence[int], weight: Sequence[int], recurrent: Sequence[int], *_: object, **__: object) -> int:
    return 2 * _products(
        x, weight, recurrent
    )  # with respect to inputs and to weights; the fused kernel always does both


for _operator, _formula in zip(_FUSED, (_count_forward, _count_backward), strict=True):
    if _operator not in flop_registry:  # torch's counter does not know the CPU's fused layer and would count nothing
        register_flop_formula(_operator)(_formula)


class LSTM(nn.Module):
    """One LSTM layer with the parameters of ``torch.nn.LSTM``.

    That class keeps a second list of its weights, which goes stale when parameters are replaced by views or by
    ``functional_call``; this one reads them on each call.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] -> [B, L, H], from a zero state."""
        zero = x.new_zeros(1, x.shape[0], self.hidden)
        weights: list[Tensor] = [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
        y, _, _ = torch.lstm(
            x,
            (zero, zero),
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        return y

    def start(self, generator: torch.Generator) -> None:
        """U(-1/sqrt(H), 1/sqrt(H)), PyTorch's default."""
        bound = 1 / math.sqrt(self.hidden)
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound, generator=generator)


class CharLSTM(Model):
    """Embedding, two LSTM layers, and a head on the last position."""

    drop1: Layer
    drop2: Layer

    def __init__(self, vocabulary: int, classes: int, embedding: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm1 = LSTM(embedding, hidden)
        self.lstm2 = LSTM(hidden, hidden)
        self.drop1, self.drop2 = drop_layer(drop, "char_lstm"), drop_layer(drop, "char_lstm")
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L] int64 -> [B, classes]."""
        y = self.drop1(self.lstm1(self.embedding(x)))  # [B, L, H]
        return self.head(self.drop2(self.lstm2(y)[:, -1]))

    def start(self, generator: torch.Generator) -> None:
        """PyTorch's defaults: a standard normal embedding, uniform elsewhere."""
        fill(self, generator)
        self.lstm1.start(generator)
        self.lstm2.start(generator)

    def layer_groups(self) -> list[GroupSpec]:
        """Embedding, each LSTM layer, head."""
        kinds = (("embedding", "embedding"), ("lstm1", "recurrent"), ("lstm2", "recurrent"), ("head", "linear"))
        return [GroupSpec(name, kind, (name,)) for name, kind in kinds]


def char_lstm(task: Task, embedding: int = 8, hidden: int = 100, dropout: float = 0.0) -> Model:
    """FedSMU's network for Shakespeare: embedding 8, two LSTM layers of 100, prediction from the last position.

    Args:
        task: rows of tokens.
        embedding: numbers for each token.
        hidden: units of each LSTM layer.
        dropout: after each LSTM layer.
    """
    vocabulary, _ = tokens(task, "char_lstm")
    if embedding < 1 or hidden < 1:
        raise ConfigError(f"char_lstm(embedding={embedding}, hidden={hidden}): both are at least 1.")
    return CharLSTM(vocabulary, outputs(task, "char_lstm"), embedding, hidden, dropout)
