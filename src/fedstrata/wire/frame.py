"""Messages as bytes: a frame is one safetensors container, decoded only if every byte of it is valid."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

from fedstrata.common.errors import WireError
from fedstrata.storage import container
from fedstrata.storage.container import LIMITS, Form, Limits, Shapes, check_name, cut

Kind: TypeAlias = Literal["down", "up"]
Value: TypeAlias = "int | float | str"

_KEY = "fedstrata"  # the one metadata entry; one only, because the library does not keep the order of several
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Frame:
    """One message between server and client.

    Args:
        kind: "down" to a client, "up" to the server.
        fields: small facts (round, samples, loss); int within 64 bits, finite float, or text. A boolean is refused:
            send 0 or 1.
        tensors: name -> CPU tensor, already packed by its codec (:mod:`fedstrata.wire.codec`).
    """

    kind: Kind
    fields: Mapping[str, Value] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class MessageSize:
    """Bytes of one message.

    ``payload`` is tensor data, ``framing`` everything else: length, header, names, fields, padding.
    """

    payload: int
    framing: int

    @property
    def total(self) -> int:
        """The length of the encoded message."""
        return self.payload + self.framing

    def __add__(self, other: MessageSize) -> MessageSize:
        return MessageSize(self.payload + other.payload, self.framing + other.framing)


def encode(frame: Frame, limits: Limits = LIMITS) -> bytes:
    """Return the message as bytes that the safetensors library can read, too.

    Raises:
        WireError: a tensor, name or field that cannot travel, with the reason.
    """
    shapes = {name: _form(name, tensor) for name, tensor in frame.tensors.items()}
    head, order, _ = container.head(shapes, _metadata(frame.kind, frame.fields, limits), limits)
    return b"".join([head, *(container.raw(frame.tensors[name]) for name in order)])


def decode(data: bytes | bytearray | memoryview, limits: Limits = LIMITS) -> Frame:
    """Return the frame that was encoded. Its tensors share one fresh buffer; ``data`` may be thrown away.

    Args:
        data: one whole message.
        limits: checked on declared values, before anything of their size is allocated.

    Raises:
        WireError: whatever is wrong with the bytes; no other error leaves this function.
    """
    try:
        view = memoryview(data).cast("B")
    except TypeError as error:
        raise WireError(f"a message is a contiguous run of bytes; this is {type(data).__name__}.") from error
    contents = container.parse(view, limits)
    if contents.metadata.keys() != {_KEY}:
        raise WireError(
            f"the header's __metadata__ holds {cut(sorted(contents.metadata))}; a message has exactly [{_KEY!r}]."
        )
    kind, fields = _read_metadata(contents.metadata[_KEY], limits)
    return Frame(kind, fields, container.tensors(contents, view))


def size(kind: Kind, fields: Mapping[str, Value], shapes: Shapes, limits: Limits = LIMITS) -> MessageSize:
    """Return bytes of a message from names, shapes and fields alone; equal to ``len(encode(frame))`` to the byte.

    Args:
        kind: as in :class:`Frame`.
        fields: the values themselves, because a longer number has more digits.
        shapes: name -> (shape, dtype) of what is really sent, so after packing.
        limits: as in :func:`encode`.
    """
    head, _, payload = container.head(shapes, _metadata(kind, fields, limits), limits)
    return MessageSize(payload, len(head))


def _form(name: str, tensor: object) -> Form:
    if not isinstance(tensor, Tensor):
        raise WireError(f"{cut(name)} is {type(tensor).__name__}, not a tensor.")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise WireError(
            f"{cut(name)} is {tensor.layout} on {tensor.device}; move it to the CPU as a dense tensor before it is"
            " sent."
        )
    return tuple(tensor.shape), tensor.dtype


def _metadata(kind: str, fields: Mapping[str, Value], limits: Limits) -> dict[str, str]:
    _check(kind, fields, limits)
    text = json.dumps(
        {"version": _VERSION, "kind": kind, "fields": dict(fields)},
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    return {_KEY: text}


def _check(kind: object, fields: object, limits: Limits) -> None:
    if kind not in ("down", "up"):
        raise WireError(f"a frame's kind is {cut(kind)}; it is 'down' or 'up'.")
    if not isinstance(fields, Mapping):
        raise WireError(f"a frame's fields are {type(fields).__name__}; a mapping is wanted.")
    if len(fields) > limits.fields:
        raise WireError(f"{len(fields)} fields; the limit is {limits.fields}.")
    for name, value in fields.items():
        check_name(name, limits)
        if not _travels(value, limits):
            raise WireError(
                f"the field {name} is {cut(value)} ({type(value).__name__}); an int within 64 bits, a finite float, "
                f"or up to {limits.text} characters of text can travel."
            )


def _travels(value: object, limits: Limits) -> bool:
    if type(value) is int:
        return -(2**63) <= value < 2**64
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is str:
        return len(value) <= limits.text and not any("\ud800" <= letter <= "\udfff" for letter in value)
    return False


def _read_metadata(text: str, limits: Limits) -> tuple[Kind, dict[str, Value]]:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise WireError("the frame's metadata hold half a surrogate pair.") from error
    table: Any = container.read_json(raw, depth=limits.depth, objects=2)
    if not isinstance(table, dict) or table.keys() != {"version", "kind", "fields"}:
        raise WireError("the frame's metadata are not exactly version, kind and fields.")
    if type(table["version"]) is not int or table["version"] != _VERSION:
        raise WireError(f"a message of version {cut(table['version'])}; this fedstrata reads version {_VERSION}.")
    _check(table["kind"], table["fields"], limits)
    return cast("Kind", table["kind"]), table["fields"]
