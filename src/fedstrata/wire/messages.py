"""Tasks and replies as messages: what crosses the boundary, named tensor by tensor, and how many bytes it takes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from fedstrata.client.task import ClientTask
from fedstrata.core.chain import Method
from fedstrata.core.codec import Form
from fedstrata.core.layout import Layout
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Direction, Reply
from fedstrata.core.plan import Plan
from fedstrata.core.state import State, state_tensors
from fedstrata.wire.codec import Codecs, pack, packed_shapes
from fedstrata.wire.frame import Frame, Kind, MessageSize, Value, size

Shape: TypeAlias = "tuple[str, tuple[int, ...], torch.dtype]"
Tensors: TypeAlias = "Mapping[str, Tensor]"

NAMES: Mapping[Direction, str] = {"down": "model", "up": "delta"}
"""How tensors of the model are called on the wire."""


def codecs_of(method: Method, layout: Layout, plan: Plan, direction: Direction) -> Codecs:
    """Return the packing of each parameter that a plan sends, as the chain's pieces declare it; the last one counts."""
    sent = (plan.download if direction == "down" else plan.upload) & layout.parameters
    codecs = {}
    for piece in method.pieces:
        if piece.overrides("codec"):
            for selector, codec in reversed(list(piece.codec(direction, layout).items())):
                codecs.update({f"{NAMES[direction]}/{n}": codec for n in sorted(layout.select(selector) & sent)})
    return codecs


# ---- down


def down(task: ClientTask, codecs: Codecs | None = None) -> Frame:
    """Return what the server sends to one client: the plan's ``download`` tensors and the pieces' payloads."""
    return Frame("down", _down_fields(task), pack(down_contents(task), codecs or {}))


def down_contents(task: ClientTask) -> dict[str, Tensor]:
    """Return the tensors of a task by their names on the wire, before packing."""
    tensors = _named(NAMES["down"], task.sent, task.plan.download)
    tensors |= _named("statistics", task.sent.statistics, task.plan.download)
    return tensors | _payload("extra", task.down_payload)


def size_down(task: ClientTask, codecs: Codecs | None = None) -> MessageSize:
    """Count the bytes of :func:`down`, without building it where sizes follow from shapes."""
    names = task.plan.download
    shapes = (
        *_shapes(NAMES["down"], task.sent, names),
        *_shapes("statistics", task.sent.statistics, names),
        *_payload_shapes("extra", task.down_payload),
    )
    if codecs:
        return _packed_size("down", shapes, _down_fields(task), codecs, lambda: down_contents(task))
    return _size("down", shapes, _down_fields(task))


def size_query(models: tuple[Model, ...], round: int) -> MessageSize:  # noqa: A002
    """Count the bytes of a query: all models to one client; scores come back as text in the answer's fields."""
    total = MessageSize(0, 0)
    for model in models:
        shapes = (*_shapes("model", model, None), *_shapes("statistics", model.statistics, None))
        total = total + _size("down", shapes, {"round": round})
    return total


def _down_fields(task: ClientTask) -> dict[str, Value]:
    return {"round": task.round, "place": task.cohort_index, "client": task.client, "lr": task.lr}


# ---- up


def up(reply: Reply, codecs: Codecs | None = None) -> Frame:
    """Return what one client sends: its update, statistics and the pieces' payloads."""
    return Frame("up", _up_fields(reply), pack(contents(reply), codecs or {}))


def contents(reply: Reply) -> dict[str, Tensor]:
    """Return the reply's tensors by their names on the wire, before packing."""
    tensors = _named(NAMES["up"], reply.delta, None) | _named("statistics", reply.statistics, None)
    return tensors | _payload("mail", reply.up_payload)


def size_up(reply: Reply, codecs: Codecs | None = None) -> MessageSize:
    """Count the bytes of :func:`up`, without building it where sizes follow from shapes."""
    shapes = (
        *_shapes(NAMES["up"], reply.delta, None),
        *_shapes("statistics", reply.statistics, None),
        *_payload_shapes("mail", reply.up_payload),
    )
    if codecs:
        return _packed_size("up", shapes, _up_fields(reply), codecs, lambda: contents(reply))
    return _size("up", shapes, _up_fields(reply))


def up_shapes(plan: Plan, model: Model) -> dict[str, Form]:
    """Return names, shapes and types of update and statistics that a plan asks for."""
    asked = (*_shapes(NAMES["up"], model, plan.upload), *_shapes("statistics", model.statistics, plan.upload))
    return {name: (shape, kind) for name, shape, kind in asked}


def payload_shapes(reply: Reply) -> dict[str, Form]:
    """Return names, shapes and types of the payloads in a reply."""
    return {name: (shape, kind) for name, shape, kind in _payload_shapes("mail", reply.up_payload)}


def payload_contents(reply: Reply) -> dict[str, Tensor]:
    """Return the payloads in a reply by their names on the wire."""
    return _payload("mail", reply.up_payload)


def _up_fields(reply: Reply) -> dict[str, Value]:
    fields: dict[str, Value] = {
        "place": reply.cohort_index,
        "client": reply.client,
        "samples": reply.samples,
        "steps": reply.steps,
    }
    # a loss that is not a number is left out
    return fields | ({"loss": reply.loss} if math.isfinite(reply.loss) else {})


# ---- names, shapes, sizes


def _named(prefix: str, p: Params, names: frozenset[str] | None) -> dict[str, Tensor]:
    return {f"{prefix}/{n}": t.detach() for n, t in p.views.items() if names is None or n in names}


def _payload(prefix: str, states: Mapping[str, State]) -> dict[str, Tensor]:
    return {
        f"{prefix}/{piece}/{name}": tensor.detach()
        for piece, state in states.items()
        for name, tensor in state_tensors(state).items()
    }


@lru_cache(maxsize=256)
def _spec_shapes(
    prefix: str,
    names: tuple[str, ...],
    shapes: tuple[tuple[int, ...], ...],
    kind: torch.dtype,
    wanted: frozenset[str] | None,
) -> tuple[Shape, ...]:
    return tuple(
        (f"{prefix}/{n}", tuple(s), kind) for n, s in zip(names, shapes, strict=True) if wanted is None or n in wanted
    )


def _shapes(prefix: str, p: Params, names: frozenset[str] | None) -> tuple[Shape, ...]:
    return _spec_shapes(prefix, p.spec.names, p.spec.shapes, p.flat.dtype, names)


def _payload_shapes(prefix: str, states: Mapping[str, State]) -> tuple[Shape, ...]:
    return tuple((n, tuple(t.shape), t.dtype) for n, t in _payload(prefix, states).items())


def _packed_size(
    kind: Kind,
    shapes: tuple[Shape, ...],
    fields: Mapping[str, Value],
    codecs: Codecs,
    make: Callable[[], Tensors],
) -> MessageSize:
    packed = packed_shapes({n: (s, d) for n, s, d in shapes}, codecs)
    if packed is None:  # sizes depend on the values
        packed = {n: (tuple(t.shape), t.dtype) for n, t in pack(make(), codecs).items()}
        return size(kind, dict(fields), packed)
    return _size(kind, tuple((n, tuple(s), d) for n, (s, d) in packed.items()), fields)


def _size(kind: Kind, shapes: tuple[Shape, ...], fields: Mapping[str, Value]) -> MessageSize:
    return _sizes(kind, shapes, len(json.dumps(fields, separators=(",", ":"))), tuple(fields.items()))


class _Sizes:
    """Sizes by shapes and by the length of the fields' text: equal lengths give equal sizes, for any digits."""

    def __init__(self) -> None:
        self.known: dict[tuple[Kind, tuple[Shape, ...], int], MessageSize] = {}

    def __call__(
        self, kind: Kind, shapes: tuple[Shape, ...], length: int, fields: tuple[tuple[str, Value], ...]
    ) -> MessageSize:
        key = (kind, shapes, length)
        if key not in self.known:
            if len(self.known) > 4096:
                self.known.clear()
            self.known[key] = size(kind, dict(fields), {n: (s, d) for n, s, d in shapes})
        return self.known[key]


_sizes = _Sizes()
