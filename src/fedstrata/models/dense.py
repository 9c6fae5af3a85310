"""Logistic (or linear) regression and the multi-layer perceptron."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from fedstrata.common.errors import ConfigError
from fedstrata.data.types import Task
from fedstrata.models.blocks import Layer, Model, Norm, Norms, drop_layer
from fedstrata.models.task import numbers, outputs


class Dense(nn.Module):
    """Linear, norm, ReLU, dropout."""

    norm: Layer
    drop: Layer

    def __init__(self, inputs: int, width: int, norms: Norms, drop: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.norm = norms.rows(width)
        self.drop = drop_layer(drop, norms.model)

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, H]."""
        return self.drop(functional.relu(self.norm(self.linear(x))))


class Perceptron(Model):
    """Flattens, passes hidden layers, ends in the head."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], classes: int, norms: Norms, drop: float) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.layers = nn.ModuleList(Dense(a, b, norms, drop) for a, b in pairwise(widths))
        self.exits = {f"layers.{i}": width for i, width in enumerate(hidden)}
        self.head = nn.Linear(widths[-1], classes)
        names = (*(f"layers.{i}.linear" for i in range(len(hidden))), "head")
        plain = norms.kind == "none" and drop == 0.0
        self.linear_chain = tuple((f"{n}.weight", f"{n}.bias") for n in names) if plain else ()
        """(weight, bias) names where the model is linear layers with ReLU between them and nothing else: executors may
        stack it.
        """

    def forward(self, x: Tensor, exits: int | None = None) -> Tensor:
        """[B, ...] -> [B, classes]; or the features [B, H] after so many hidden layers."""
        x = x.flatten(1)  # [B, D]
        for layer in self.layers[:exits]:
            x = layer(x)
        return self.head(x) if exits is None else x


def logistic(task: Task) -> Model:
    """One linear layer on the flattened sample; linear regression where the task is one."""
    return Perceptron(numbers(task, "logistic"), (), outputs(task, "logistic"), Norms("logistic", "none"), 0.0)


def mlp(
    task: Task, norm: Norm = "none", hidden: tuple[int, ...] = (128,), dropout: float = 0.0, groups: int = 8
) -> Model:
    """Hidden layers with ReLU on the flattened sample.

    Args:
        task: any but tokens.
        norm: after each hidden layer.
        hidden: widths; ``100`` is FedLAG's network for MNIST.
        dropout: after each hidden layer.
        groups: for ``norm = group``.
    """
    if not hidden or min(hidden) < 1:
        raise ConfigError(
            f"mlp(hidden={list(hidden)}): every hidden layer needs at least 1 unit; the model without hidden layers is"
            " logistic."
        )
    return Perceptron(numbers(task, "mlp"), hidden, outputs(task, "mlp"), Norms("mlp", norm, groups), dropout)
