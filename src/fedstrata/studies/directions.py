"""Draw directions in the space of parameters, and scale them filter by filter."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedstrata.common.random_streams import stream
from fedstrata.core.layout import Entry, Layout
from fedstrata.core.params import Params

Vectors: TypeAlias = Literal["still", "scaled"]
"""How to treat biases and norms' parameters: "still" leaves them unchanged, "scaled" treats each as one filter."""


def gaussian(size: int, seed: int, purpose: str, index: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw [size] standard normal numbers that depend on (seed, purpose, index) only."""
    return torch.from_numpy(stream(seed, purpose, index).standard_normal(size)).to(dtype)


def filterwise(direction: Tensor, at: Tensor, layout: Layout, vectors: Vectors) -> Tensor:
    """Scale each filter of a direction to the length of the model's filter: d_f |w_f| / |d_f|.

    A filter computes one output of a layer: a row [in, k, k] of a convolution [out, in, k, k], a row of a linear map or
    an embedding. Filters of length zero become zero.

    Args:
        direction: [P].
        at: [P] the model.
        layout: of both.
        vectors: how to treat tensors with a single axis and norms' parameters: zero, or each scaled as one filter.
            Integers of the network do not change.
    Source: Li et al. 2018, "Visualizing the Loss Landscape of Neural Nets", sec. 4.
    """
    scaled = torch.zeros_like(at)
    given, model, result = (Params(flat, layout.spec).views for flat in (direction, at, scaled))
    for name in layout.spec.names:
        vector = is_vector(layout.entries[name])
        if name in layout.integers or (vector and vectors == "still"):
            continue
        rows = (1, -1) if vector else (len(model[name]), -1)
        d, w = given[name].reshape(rows), model[name].reshape(rows)  # [filters, numbers]
        length = d.norm(dim=1, keepdim=True)
        result[name].copy_(
            (d * torch.where(length > 0, w.norm(dim=1, keepdim=True) / length, 0)).reshape(model[name].shape)
        )
    return scaled


def is_vector(entry: Entry) -> bool:
    """Tell whether a tensor is a bias or a norm's scale or shift rather than filters."""
    return entry.kind == "norm" or len(entry.shape) <= 1
