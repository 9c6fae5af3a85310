"""The protocol of a codec: a lossless packing of tensors; see ``fedstrata.wire.codec`` for those of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

Form: TypeAlias = tuple[tuple[int, ...], torch.dtype]  # one tensor's shape and dtype; a torch.Size is a tuple too
Shapes: TypeAlias = Mapping[str, Form]


@runtime_checkable
class Codec(Protocol):
    """A packing of a set of tensors into other tensors, and back, without loss. A frozen value with its settings."""

    @property
    def name(self) -> str:
        """What users write; packed tensors are called after it on the wire."""

    def packed_shapes(self, shapes: Shapes) -> Mapping[str, Form] | None:
        """Return name -> (shape, dtype) of what is sent; None where sizes depend on the values."""

    def pack(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what is sent; raise WireError for values that the packing cannot hold."""

    def unpack(self, packed: Mapping[str, Tensor], shapes: Shapes) -> Mapping[str, Tensor]:
        """Return the tensors again, bit for bit; raise WireError for anything that ``pack`` would not have made."""
