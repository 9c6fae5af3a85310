"""Directions in the space of parameters, scaled filter by filter."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedstrata.common.random_streams import stream
from fedstrata.core.layout import Entry, Layout
from fedstrata.core.params import Params

Vectors: TypeAlias = Literal["still", "scaled"]
"""What becomes of biases and of norms' scales and shifts: "still" leaves them as they are, "scaled" takes each of them
as one filter.
"""


def gaussian(size: int, seed: int, purpose: str, place: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[size] standard normal numbers that hang on (seed, purpose, place) alone."""
    return torch.from_numpy(stream(seed, purpose, place).standard_normal(size)).to(dtype)


def filterwise(direction: Tensor, at: Tensor, layout: Layout, vectors: Vectors) -> Tensor:
    """The direction with each filter as long as the same filter of the model: d_f |w_f| / |d_f|; filters without length
    give zero.

    A filter is what one output of a layer is computed by: a row [in, k, k] of a convolution [out, in, k, k], a row of a
    linear map or an embedding.

    Args:
        direction: [P].
        at: [P] the model.
        layout: of both.
        vectors: what becomes of tensors with a single axis and of norms' parameters: zero, or each scaled as one
            filter. Settings of the network are no weights, and stay.
    Source: Li et al. 2018, "Visualizing the Loss Landscape of Neural Nets", sec. 4.
    """
    moved = torch.zeros_like(at)
    given, model, made = (Params(flat, layout.spec).views for flat in (direction, at, moved))
    for name in layout.spec.names:
        vector = is_vector(layout.entries[name])
        if name in layout.integers or (vector and vectors == "still"):
            continue
        rows = (1, -1) if vector else (len(model[name]), -1)
        d, w = given[name].reshape(rows), model[name].reshape(rows)  # [filters, numbers]
        long = d.norm(dim=1, keepdim=True)
        made[name].copy_((d * torch.where(long > 0, w.norm(dim=1, keepdim=True) / long, 0)).reshape(model[name].shape))
    return moved


def is_vector(entry: Entry) -> bool:
    """Whether a tensor is a bias or a norm's scale or shift rather than filters."""
    return entry.kind == "norm" or len(entry.shape) <= 1
