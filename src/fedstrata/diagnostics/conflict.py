"""Measure conflict between clients' updates: how many pairs oppose each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedstrata.diagnostics.base import PanelText, RoundSnapshot
from fedstrata.diagnostics.several import MultiMeasure
from fedstrata.diagnostics.updates import senders

_START = "of what local training changed: the model a client ended with minus the one it started from"
_MODEL = (
    "of what the server averages: the model a client ended with minus the server's model. It includes the differences"
    " between clients' starting points"
)


@dataclass(frozen=True)
class Conflict(MultiMeasure):
    """Measure the share of client pairs whose updates have a negative cosine, and the mean cosine.

    Both are taken twice, as an update can be relative to two models. *What training changed* is ``Reply.delta``, the
    final model minus what the client received. *What the server averages* is the final model minus the server's model;
    its series begin with "model". They are equal unless the server sends each client a different model. FedPhoenix
    sends reset copies, and its second series include the reset: a random part of each client, which moves every cosine
    towards 0. Use the first series to see whether training from whole or from partial resets conflicts more. Under
    ``fedphoenix(side=client)`` only the client knows its start: both are the final model minus the server's model.

    In all: over the parameters that every client sent. By layer group: over the clients that sent it, at least two. A
    pair with an update of zero is not counted; without a pair there is no number.

    Source: a negative cosine as conflict: Yu et al. 2020, "Gradient Surgery for Multi-Task Learning", def. 1, of
    gradients of tasks.
    """

    title: ClassVar[str] = "Pairs of clients in conflict"
    text: ClassVar[str] = (
        f"Share of client pairs whose updates have a negative cosine, {_START}. 0: no two clients oppose each other;"
        " 1: all do. Independent directions give a half. Conflict as in Yu et al. 2020."
    )
    unit: ClassVar[str] = "share of pairs"
    quantities: ClassVar[Mapping[str, PanelText]] = {
        "cosine": PanelText(
            "Mean cosine of clients' updates",
            f"Mean over client pairs of the cosine of their updates, {_START}. 1: all agree; 0: nothing in common.",
            "cosine",
        ),
        "model": PanelText(
            "Pairs of clients in conflict, from the server's model",
            f"Share of client pairs with a negative cosine, {_MODEL}.",
            "share of pairs",
        ),
        "model cosine": PanelText(
            "Mean cosine of clients' updates, from the server's model",
            f"Mean over client pairs of the cosine, {_MODEL}.",
            "cosine",
        ),
    }

    def measure(self, snapshot: RoundSnapshot) -> Mapping[str, float | None]:
        """Compute the share and the mean cosine of both kinds of update, by layer group and in all."""
        values: dict[str, float | None] = {}
        starts_differ = any(sent is not snapshot.before for sent in snapshot.sent)
        for key, (names, clients) in senders(snapshot).items():
            updates = [torch.stack([snapshot.replies[i].delta[n].reshape(-1) for i in clients]) for n in names]
            averaged = trained = products(updates)
            if starts_differ:
                averaged = products([torch.stack([_change(snapshot, i, n) for i in clients]) for n in names])
            for (share, cosine), gram in ((("", "cosine/"), trained), (("model/", "model cosine/"), averaged)):
                values[share + key], values[cosine + key] = conflict(gram)
        return values


def _change(snapshot: RoundSnapshot, i: int, name: str) -> Tensor:
    """Return [numel] the final value of one tensor of a client, minus that of the server's model."""
    return (snapshot.replies[i].delta[name] + (snapshot.sent[i][name] - snapshot.before[name])).reshape(-1)


def products(parts: list[Tensor]) -> Tensor:
    """Compute [C, C] float64 inner products of vectors that are given tensor by tensor, each [C, numel]."""
    total = torch.zeros(len(parts[0]), len(parts[0]), dtype=torch.float64)
    for part in parts:
        wide = part.double()
        total += wide @ wide.T
    return total


def conflict(gram: Tensor) -> tuple[float | None, float | None]:
    """Compute (share of pairs with a negative cosine, mean cosine) over pairs of vectors that are not zero.

    Both are None without such a pair.

    Args:
        gram: [C, C] inner products.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]])
    >>> conflict(products([x]))
    (0.3333333333333333, -0.3333333333333333)
    """
    lengths = gram.diagonal().sqrt()
    first, second = torch.triu_indices(len(gram), len(gram), offset=1)
    counts = (lengths[first] > 0) & (lengths[second] > 0)
    first, second = first[counts], second[counts]
    if not len(first):
        return None, None
    inner = gram[first, second]
    return float((inner < 0).double().mean()), float((inner / (lengths[first] * lengths[second])).mean())
