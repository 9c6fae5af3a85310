"""Lossless packings of tensors, declared by tensor name. What is lost on purpose is lost in a piece's ``upload``, never
here.

``dense`` sends a tensor as it is. ``bits`` sends tensors of exactly +1 and -1 as one bit an entry; all of a message are
packed once, as one flat vector in the order of their names, so that a message of many small tensors wastes less than
one byte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedstrata.common.errors import WireError, nearest
from fedstrata.storage.container import Form, Shapes, cut

T = TypeVar("T")


class Codec(Protocol):
    """A packing of a set of tensors into other tensors, and back, without loss; sizes follow from shapes alone."""

    def packed_shapes(self, shapes: Shapes) -> dict[str, Form]:
        """Name -> (shape, dtype) of what is sent for tensors of these shapes."""

    def pack(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is sent; raises WireError for values that the packing cannot hold."""

    def unpack(self, packed: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
        """The tensors again, bit for bit; raises WireError for anything ``pack`` would not have made."""


class Dense:
    """Tensors as they are. What arrives is checked by the gate, not here."""

    def packed_shapes(self, shapes: Shapes) -> dict[str, Form]:
        """The shapes themselves."""
        return dict(shapes)

    def pack(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors themselves."""
        return dict(tensors)

    def unpack(self, packed: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
        """Those of the tensors that arrived."""
        return {name: packed[name] for name in shapes if name in packed}


class Bits:
    """Tensors of exactly +1 and -1 (float32 or float64) as ceil(d / 8) bytes for all d entries: bit 1 is +1, little bit
    order, the rest 0.

    Source: FedSMU, the 1-bit upload; sign(0) is decided by the piece that draws the sign, because one bit has two
        values.
    """

    name = "@bits"

    def packed_shapes(self, shapes: Shapes) -> dict[str, Form]:
        """One vector of bytes, or nothing if no tensor is given."""
        return {self.name: ((-(-_entries(shapes) // 8),), torch.uint8)} if shapes else {}

    def pack(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One [ceil(d / 8)] uint8 vector."""
        if not tensors:
            return {}
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or not bool((tensor.abs() == 1).all()):
                raise WireError(
                    f"bits: {cut(name)} {_stray(tensor)}; the codec holds exactly +1 and -1. Send signs (0 has none) or"
                    " use dense."
                )
        flat = torch.cat([tensors[name].detach().reshape(-1) > 0 for name in sorted(tensors)])
        return {self.name: torch.from_numpy(np.packbits(flat.numpy(), bitorder="little"))}

    def unpack(self, packed: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
        """The tensors in their declared dtypes."""
        if not shapes:
            return {}
        count, vector = _entries(shapes), packed.get(self.name)
        wanted = -(-count // 8)
        if vector is None or vector.dtype != torch.uint8 or tuple(vector.shape) != (wanted,):
            got = "nothing" if vector is None else f"{vector.dtype} of shape {tuple(vector.shape)}"
            raise WireError(f"bits: {wanted} bytes for {count} signs are wanted as {self.name}; {got} arrived.")
        if count % 8 and int(vector[-1]) >> (count % 8):
            raise WireError(
                f"bits: the last byte is {int(vector[-1])}; only its lowest {count % 8} bits are signs, the others must"
                " be 0."
            )
        signs = torch.from_numpy(np.unpackbits(vector.numpy(), count=count, bitorder="little"))
        result, offset = {}, 0
        for name in sorted(shapes):
            shape, dtype = shapes[name]
            length = math.prod(shape)
            result[name] = signs[offset : offset + length].to(dtype).mul_(2).sub_(1).reshape(shape)
            offset += length
        return {name: result[name] for name in shapes}


CODECS: dict[str, Codec] = {"dense": Dense(), "bits": Bits()}


def register(name: str, codec: Codec) -> None:
    """Make a codec known under a new name."""
    if name in CODECS:
        raise WireError(f"a codec named {name!r} is registered already.")
    CODECS[name] = codec


def packed_shapes(shapes: Shapes, codecs: Mapping[str, str]) -> dict[str, Form]:
    """Name -> (shape, dtype) of what is sent.

    Args:
        shapes: of the tensors before packing.
        codecs: tensor name -> codec name; a tensor without an entry is dense.

    Raises:
        WireError: an unknown codec or tensor, or two packings that would send the same name.
    """
    return _union(
        [CODECS[codec].packed_shapes({n: shapes[n] for n in names}) for codec, names in _split(shapes, codecs).items()]
    )


def pack(tensors: Mapping[str, Tensor], codecs: Mapping[str, str]) -> dict[str, Tensor]:
    """What is sent for these tensors; see :func:`packed_shapes`."""
    return _union(
        [CODECS[codec].pack({n: tensors[n] for n in names}) for codec, names in _split(tensors, codecs).items()]
    )


def unpack(packed: Mapping[str, Tensor], shapes: Shapes, codecs: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors that were packed.

    Dense tensors that are missing or too many are passed on as they are: the gate names them.

    Args:
        packed: what arrived.
        shapes: what was asked for, before packing.
        codecs: as in :func:`packed_shapes`.

    Raises:
        WireError: packed bytes that no honest sender makes.
    """
    split = _split(shapes, codecs)
    sent = [CODECS[codec].packed_shapes({n: shapes[n] for n in names}) for codec, names in split.items()]
    known = {name for part in sent for name in part}
    parts = [CODECS[codec].unpack(packed, {n: shapes[n] for n in names}) for codec, names in split.items()]
    return _union([*parts, {name: tensor for name, tensor in packed.items() if name not in known}])


def _split(names: Mapping[str, object], codecs: Mapping[str, str]) -> dict[str, list[str]]:
    for name, codec in codecs.items():
        if codec not in CODECS:
            raise WireError(
                f"{cut(name)} asks for the codec {codec!r}; {', '.join(CODECS)} are known.{nearest(codec, CODECS)}"
            )
        if name not in names:
            raise WireError(f"the codec {codec} is declared for {cut(name)}, which is not sent.{nearest(name, names)}")
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(codecs.get(name, "dense"), []).append(name)
    return groups


def _union(parts: list[dict[str, T]]) -> dict[str, T]:
    whole: dict[str, T] = {}
    for part in parts:
        for name, value in part.items():
            if name in whole:
                raise WireError(f"the name {cut(name)} would be sent twice; names that begin with @ belong to codecs.")
            whole[name] = value
    return whole


def _entries(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape, _ in shapes.values())


def _stray(tensor: Tensor) -> str:
    if not tensor.is_floating_point():
        return f"is {tensor.dtype}"
    return f"holds {tensor.reshape(-1)[(tensor.abs() != 1).reshape(-1)][0].item()}"
