"""Conflict of clients' updates: how many pairs pull against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedstrata.diagnostics.base import PanelText, RoundSnapshot
from fedstrata.diagnostics.several import Several
from fedstrata.diagnostics.updates import senders

_START = "of what local training did: where a client ended minus where it started"
_MODEL = (
    "of what the server averages: where a client ended minus the server's model. It holds what clients' own starting"
    " points differ by"
)


@dataclass(frozen=True)
class Conflict(Several):
    """Over pairs of clients, the share whose updates have a negative cosine, and the mean cosine; in all and by layer
    group.

    Twice, as there are two things that an update can be relative to. *What training did* is ``Reply.delta``, the end
    minus what the client was sent. *What the server averages* is the end minus the server's model; its series begin
    with "model". They are equal unless clients are sent models of their own. FedPhoenix sends each client a reset copy,
    so that the second one holds the reset too, a random part that is the client's own and pulls every cosine towards 0;
    look at the first one to see whether training that starts from whole or from partial resets disagrees more. With
    ``fedphoenix(side=client)`` nobody but the client knows its start: both are the end minus the server's model.

    In all: over the parameters that every client sent. By layer group: over the clients that sent it, at least two. A
    pair of which one did not move counts neither way; without a pair there is no number.

    Source: a negative cosine as conflict: Yu et al. 2020, "Gradient Surgery for Multi-Task Learning", def. 1, of
        gradients of tasks.
    """

    title: ClassVar[str] = "Pairs of clients in conflict"
    text: ClassVar[str] = (
        f"Share of client pairs whose updates have a negative cosine, {_START}. 0: no two clients pull against each"
        " other; 1: all do. Independent directions give a half. Conflict as in Yu et al. 2020."
    )
    unit: ClassVar[str] = "share of pairs"
    others: ClassVar[Mapping[str, PanelText]] = {
        "cosine": PanelText(
            "Mean cosine of clients' updates",
            f"Mean over client pairs of the cosine of their updates, {_START}. 1: all pull alike; 0: nothing in"
            " common.",
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

    def look(self, look: RoundSnapshot) -> Mapping[str, float | None]:
        """Share and mean cosine of both views, by layer group and in all."""
        found: dict[str, float | None] = {}
        own = any(sent is not look.before for sent in look.sent)
        for key, (names, clients) in senders(look).items():
            trained = products([torch.stack([look.replies[i].delta[n].reshape(-1) for i in clients]) for n in names])
            averaged = products([torch.stack([_moved(look, i, n) for i in clients]) for n in names]) if own else trained
            for (share, cosine), gram in ((("", "cosine/"), trained), (("model/", "model cosine/"), averaged)):
                found[share + key], found[cosine + key] = conflict(gram)
        return found


def _moved(look: RoundSnapshot, i: int, name: str) -> Tensor:
    """[numel] where a client ended in one tensor, minus the server's model."""
    return (look.replies[i].delta[name] + (look.sent[i][name] - look.before[name])).reshape(-1)


def products(parts: list[Tensor]) -> Tensor:
    """[C, C] float64 inner products of vectors that are given tensor by tensor, each [C, numel]."""
    total = torch.zeros(len(parts[0]), len(parts[0]), dtype=torch.float64)
    for part in parts:
        wide = part.double()
        total += wide @ wide.T
    return total


def conflict(gram: Tensor) -> tuple[float | None, float | None]:
    """(share of pairs with a negative cosine, mean cosine) over pairs of vectors that are not zero; None without such a
    pair.

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
