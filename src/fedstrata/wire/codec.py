"""Lossless packings of tensors. What is lost on purpose is lost in a piece's ``compress``, never here.

``dense`` sends a tensor unchanged. ``bits`` sends tensors of exactly +1 and -1 as one bit an entry; all of a group are
packed once, as one flat vector in the order of their names, so that a message of many small tensors wastes less than
one byte. Other packages register codecs by the entry point ``fedstrata.codecs``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedstrata.common.call_syntax import bind, parse_call
from fedstrata.common.errors import WireError
from fedstrata.common.registry import Registry
from fedstrata.common.suggest import suggestion
from fedstrata.core.codec import Codec, Form, Shapes
from fedstrata.storage.container import cut

T = TypeVar("T")
Codecs: TypeAlias = Mapping[str, Codec]
"""Tensor name -> the codec that packs it; a tensor without an entry is dense. Tensors of one codec are one group."""


@dataclass(frozen=True)
class Dense:
    """Send tensors unchanged. What arrives is checked by the gate, not here."""

    name = "dense"

    def packed_shapes(self, shapes: Shapes) -> dict[str, Form]:
        """Return the shapes themselves."""
        return dict(shapes)

    def pack(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors themselves."""
        return dict(tensors)

    def unpack(self, packed: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
        """Return those of the tensors that arrived."""
        return {name: packed[name] for name in shapes if name in packed}


@dataclass(frozen=True)
class Bits:
    """Pack tensors of exactly +1 and -1 (float32 or float64) into ceil(d / 8) bytes for all d entries.

    Bit 1 is +1, little bit order, the rest 0.

    Source: FedSMU, the 1-bit upload; sign(0) is decided by the piece that draws the sign, because one bit has two
        values.
    """

    name = "bits"
    packed = "@bits"

    def packed_shapes(self, shapes: Shapes) -> dict[str, Form]:
        """Return one vector of bytes, or nothing if no tensor is given."""
        return {self.packed: ((-(-_entries(shapes) // 8),), torch.uint8)} if shapes else {}

    def pack(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return one [ceil(d / 8)] uint8 vector."""
        if not tensors:
            return {}
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or not bool((tensor.abs() == 1).all()):
                raise WireError(
                    f"bits: {cut(name)} {_stray(tensor)}; the codec holds exactly +1 and -1. Send signs (0 has none) or"
                    " use dense."
                )
        flat = torch.cat([tensors[name].detach().reshape(-1) > 0 for name in sorted(tensors)])
        return {self.packed: torch.from_numpy(np.packbits(flat.numpy(), bitorder="little"))}

    def unpack(self, packed: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
        """Return the tensors in their declared dtypes."""
        if not shapes:
            return {}
        count, vector = _entries(shapes), packed.get(self.packed)
        wanted = -(-count // 8)
        if vector is None or vector.dtype != torch.uint8 or tuple(vector.shape) != (wanted,):
            got = "nothing" if vector is None else f"{vector.dtype} of shape {tuple(vector.shape)}"
            raise WireError(f"bits: {wanted} bytes for {count} signs are expected as {self.packed}; {got} arrived.")
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


CODECS: Registry[type[Codec]] = Registry(
    "codecs",
    "codec",
    accepts=lambda offered: isinstance(offered, type) and all(hasattr(offered, verb) for verb in ("pack", "unpack")),
    wanted="a frozen dataclass with the methods of fedstrata.core.codec.Codec",
    entries={"dense": Dense, "bits": Bits},
)


def find_codec(text: str) -> Codec:
    """Return a codec from call syntax, ``"bits"``.

    Raises:
        ConfigError: an unknown codec or setting.
    """
    call = parse_call(text)
    codec: Codec = bind(call, CODECS.find(call.name), what="codec")
    return codec


def packed_shapes(shapes: Shapes, codecs: Codecs) -> dict[str, Form] | None:
    """Return name -> (shape, dtype) of what is sent; None where a codec's sizes depend on the values.

    Args:
        shapes: of the tensors before packing.
        codecs: by tensor name.

    Raises:
        WireError: an unknown tensor, or two packings that would send the same name.
    """
    parts: list[Mapping[str, Form]] = []
    for group in _groups(shapes, codecs):
        packed = group.codec.packed_shapes({n: shapes[n] for n in group.names})
        if packed is None:
            return None
        parts.append(group.outside(packed))
    return _union(parts)


def pack(tensors: Mapping[str, Tensor], codecs: Codecs) -> dict[str, Tensor]:
    """Return what is sent for these tensors; see :func:`packed_shapes`."""
    groups = _groups(tensors, codecs)
    return _union([g.outside(g.codec.pack({n: tensors[n] for n in g.names})) for g in groups])


def unpack(packed: Mapping[str, Tensor], shapes: Shapes, codecs: Codecs) -> dict[str, Tensor]:
    """Return the tensors that were packed.

    Dense tensors that are missing or too many are passed on: the gate names them.

    Args:
        packed: what arrived.
        shapes: what was asked for, before packing.
        codecs: as in :func:`packed_shapes`.

    Raises:
        WireError: packed bytes that no honest sender makes.
    """
    left = dict(packed)
    parts: list[Mapping[str, Tensor]] = []
    for group in _groups(shapes, codecs):
        mine = {name: left.pop(name) for name in list(left) if group.owns(name)}
        parts.append(group.codec.unpack(group.inside(mine), {n: shapes[n] for n in group.names}))
    return _union([*parts, left])


@dataclass(frozen=True)
class _Group:
    """Tensors of one codec in a message; packed names of a second group end in its number."""

    codec: Codec
    names: tuple[str, ...]
    number: int

    @property
    def _dense(self) -> bool:
        return isinstance(self.codec, Dense)

    @property
    def _ending(self) -> str:
        return f"#{self.number}" if self.number else ""

    def owns(self, name: str) -> bool:
        """Say whether a packed name belongs to this group."""
        if self._dense:
            return name in self.names
        stem, _, number = name.partition("#")
        return stem.startswith(f"@{self.codec.name}") and number == (str(self.number) if self.number else "")

    def outside(self, packed: Mapping[str, T]) -> dict[str, T]:
        """Return packed tensors under their names on the wire."""
        if self._dense:
            return dict(packed)
        for name in packed:
            if not name.startswith(f"@{self.codec.name}") or "#" in name:
                raise WireError(f"{self.codec.name}: packed names begin with @{self.codec.name}; {cut(name)} does not.")
        return {name + self._ending: value for name, value in packed.items()}

    def inside(self, packed: Mapping[str, T]) -> dict[str, T]:
        """Return packed tensors under the names that the codec gave them."""
        return {name.removesuffix(self._ending): value for name, value in packed.items()}


def _groups(names: Mapping[str, object], codecs: Codecs) -> list[_Group]:
    """Return the tensors of a message by codec, in order; groups of one codec name are numbered."""
    for name, codec in codecs.items():
        if name not in names:
            raise WireError(
                f"the codec {codec.name} is declared for {cut(name)}, which is not sent.{suggestion(name, list(names))}"
            )
    members: dict[Codec, list[str]] = {}
    dense = Dense()
    for name in names:
        members.setdefault(codecs.get(name, dense), []).append(name)
    counts: dict[str, int] = {}
    groups = []
    for codec, mine in members.items():
        number = counts[codec.name] = counts.get(codec.name, -1) + 1
        groups.append(_Group(codec, tuple(mine), number))
    return groups


def _union(parts: list[Mapping[str, T]]) -> dict[str, T]:
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
