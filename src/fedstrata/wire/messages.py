"""Work and replies as messages: what crosses the boundary, named tensor by tensor, and what it weighs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from fedstrata.client.update import ClientTask
from fedstrata.core.params import Params
from fedstrata.core.piece import Reply
from fedstrata.core.plan import Plan
from fedstrata.core.state import State, flatten_state
from fedstrata.storage.container import Form
from fedstrata.wire.codec import pack, packed_shapes
from fedstrata.wire.frame import Frame, Kind, MessageSize, Value, size

Shape: TypeAlias = "tuple[str, tuple[int, ...], torch.dtype]"


def down(work: ClientTask) -> Frame:
    """What the server sends to one client: the plan's ``down`` tensors and the pieces' extras."""
    tensors = _named("model", work.sent, work.plan.down)
    assert work.sent.buffers is not None
    tensors |= _named("statistics", work.sent.buffers, work.plan.down)
    tensors |= _letters("extra", work.extras)
    return Frame("down", _down_fields(work), tensors)


def up(reply: Reply, codecs: Mapping[str, str] | None = None) -> Frame:
    """What one client sends: its update, statistics and the pieces' mail. ``codecs`` names the packing by tensor.

    The rest is dense.
    """
    tensors = (
        _named("delta", reply.delta, None) | _named("statistics", reply.statistics, None) | _letters("mail", reply.mail)
    )
    return Frame("up", _up_fields(reply), pack(tensors, codecs or {}))


def contents(reply: Reply) -> dict[str, Tensor]:
    """The reply's tensors by their names on the wire, before packing."""
    return (
        _named("delta", reply.delta, None) | _named("statistics", reply.statistics, None) | _letters("mail", reply.mail)
    )


def weigh_down(work: ClientTask) -> MessageSize:
    """Bytes of :func:`down`, without building it."""
    names, fields = work.plan.down, _down_fields(work)
    assert work.sent.buffers is not None
    shapes = (
        *_shapes("model", work.sent, names),
        *_shapes("statistics", work.sent.buffers, names),
        *_letter_shapes("extra", work.extras),
    )
    return _size("down", shapes, fields)


def weigh_up(reply: Reply, codecs: Mapping[str, str] | None = None) -> MessageSize:
    """Bytes of :func:`up`, without building it."""
    shapes = (
        *_shapes("delta", reply.delta, None),
        *_shapes("statistics", reply.statistics, None),
        *_letter_shapes("mail", reply.mail),
    )
    if codecs:
        packed = packed_shapes({n: (s, d) for n, s, d in shapes}, codecs)
        shapes = tuple((n, tuple(s), d) for n, (s, d) in packed.items())
    return _size("up", shapes, _up_fields(reply))


def weigh_ask(models: tuple[Params, ...], round: int) -> MessageSize:  # the field's word  # noqa: A002
    """Bytes of a question: all models to one client, one score for each back (as text in the answer's fields)."""
    total = MessageSize(0, 0)
    for model in models:
        assert model.buffers is not None
        total = total + _size(
            "down", (*_shapes("model", model, None), *_shapes("statistics", model.buffers, None)), {"round": round}
        )
    return total


def up_shapes(plan: Plan, params: Params) -> dict[str, Form]:
    """Names, shapes and types of update and statistics that a plan asks for."""
    assert params.buffers is not None
    asked = (*_shapes("delta", params, plan.up), *_shapes("statistics", params.buffers, plan.up))
    return {name: (shape, kind) for name, shape, kind in asked}


def _down_fields(work: ClientTask) -> dict[str, Value]:
    return {"round": work.round, "place": work.place, "client": work.client, "lr": work.lr}


def _up_fields(reply: Reply) -> dict[str, Value]:
    fields: dict[str, Value] = {
        "place": reply.place,
        "client": reply.client,
        "samples": reply.samples,
        "steps": reply.steps,
    }
    return fields | (
        {"loss": reply.loss} if math.isfinite(reply.loss) else {}
    )  # a loss that is no number is left out, not sent as one


def _named(prefix: str, p: Params, names: frozenset[str] | None) -> dict[str, Tensor]:
    return {f"{prefix}/{n}": t.detach() for n, t in p.views.items() if names is None or n in names}


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


def _letters(prefix: str, states: Mapping[str, State]) -> dict[str, Tensor]:
    return {
        f"{prefix}/{piece}/{n}": _tensor(v) for piece, state in states.items() for n, v in flatten_state(state).items()
    }


def _letter_shapes(prefix: str, states: Mapping[str, State]) -> tuple[Shape, ...]:
    return tuple((n, tuple(t.shape), t.dtype) for n, t in _letters(prefix, states).items())


def _tensor(value: Params | Tensor) -> Tensor:
    return value.flat.detach() if isinstance(value, Params) else value


def _size(kind: Kind, shapes: tuple[Shape, ...], fields: Mapping[str, Value]) -> MessageSize:
    return _sizes(kind, shapes, len(json.dumps(fields, separators=(",", ":"))), tuple(fields.items()))


class _Sizes:
    """Sizes by shapes and by the length of the fields' text: equal lengths give equal sizes, whatever the digits."""

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
