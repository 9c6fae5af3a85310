"""Work and replies as plain data (JSON) plus named tensors, for workers in other processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Size, Tensor

from fedstrata.client.update import ClientTask
from fedstrata.core.layout import Layout, Names
from fedstrata.core.params import Params, Spec
from fedstrata.core.piece import Reply
from fedstrata.core.plan import Phase, Plan
from fedstrata.core.state import State, flatten_state, restore_state

Plain = dict[str, Any]


class NameSets:
    """Sets of tensor names as numbers: bit i stands for the layout's i-th tensor."""

    def __init__(self, layout: Layout) -> None:
        self.names = tuple(layout.entries)
        self.bit = {n: 1 << i for i, n in enumerate(self.names)}
        self.full = (1 << len(self.names)) - 1
        self.known: dict[int, Names] = {self.full: frozenset(self.names)}

    def number(self, names: Names | None) -> str | None:
        """Hexadecimal, or None."""
        return None if names is None else f"{sum(self.bit[n] for n in names):x}"

    def back(self, number: str | None) -> Names | None:
        """The set again."""
        if number is None:
            return None
        value = int(number, 16)
        if value not in self.known:
            self.known[value] = frozenset(n for n, bit in self.bit.items() if value & bit)
        return self.known[value]


def plan_out(plan: Plan, sets: NameSets) -> Plain:
    """A place's plan as plain data."""
    phases = [[p.name, sets.number(p.train), p.epochs, p.steps, p.lr] for p in plan.phases]
    return {"phases": phases} | {f: sets.number(getattr(plan, f)) for f in ("train", "down", "up", "average", "keep")}


def plan_in(data: Plain, sets: NameSets) -> Plan:
    """Back from :func:`plan_out`."""
    phases = tuple(
        Phase(name, sets.back(train), epochs, steps, lr) for name, train, epochs, steps, lr in data["phases"]
    )
    parts: dict[str, Any] = {f: sets.back(data[f]) for f in ("train", "down", "up", "average", "keep")}
    return Plan(**parts, phases=phases)


def states_out(states: Mapping[str, State], prefix: str, note: Plain) -> dict[str, Tensor]:
    """Pieces' states as tensors; ``note`` takes down which of them are parameters, and of which names."""
    tensors = {}
    for piece, state in states.items():
        for key, value in flatten_state(state).items():
            name = f"{prefix}/{piece}/{key}"
            tensors[name] = value.flat if isinstance(value, Params) else value
            note[name] = (
                [[n, list(s)] for n, s in zip(value.spec.names, value.spec.shapes, strict=True)]
                if isinstance(value, Params)
                else None
            )
    return tensors


def states_in(
    tensors: Mapping[str, Tensor], prefix: str, note: Plain, take: Callable[[Tensor], Tensor]
) -> dict[str, State]:
    """Back from :func:`states_out`."""
    states: dict[str, dict[str, Params | Tensor]] = {}
    for name, shapes in note.items():
        if name.startswith(prefix + "/"):
            _, piece, key = name.split("/", 2)
            tensor = take(tensors[name])
            states.setdefault(piece, {})[key] = tensor if shapes is None else Params(tensor, spec_in(shapes))
    return {piece: restore_state(state) for piece, state in states.items()}


def spec_in(shapes: list[Any]) -> Spec:
    """Names and shapes from plain data."""
    return Spec(tuple(n for n, _ in shapes), tuple(Size(s) for _, s in shapes))


def work_out(work: ClientTask, sets: NameSets, *, shared: bool) -> tuple[Plain, dict[str, Tensor]]:
    """One client's work; ``shared`` means that what is sent lies in the round's common memory already."""
    note: Plain = {}
    tensors = states_out(work.extras, "extra", note)
    tensors |= {f"row/{n}": t for n, t in (work.row or {}).items()}
    if not shared:
        assert work.sent.buffers is not None
        tensors |= {"sent": work.sent.flat, "sent.buffers": work.sent.buffers.flat}
    head = {
        "place": work.place,
        "client": work.client,
        "occurrence": work.occurrence,
        "round": work.round,
        "lr": work.lr,
    }
    return head | {
        "plan": plan_out(work.plan, sets),
        "note": note,
        "row": work.row is not None,
        "shared": shared,
    }, tensors


def work_in(
    head: Plain, tensors: Mapping[str, Tensor], common: Mapping[str, Tensor], sets: NameSets, like: Params
) -> ClientTask:
    """Back from :func:`work_out`; ``like`` gives the model's names."""
    assert like.buffers is not None
    source = common if head["shared"] else tensors
    sent = Params(source["sent"], like.spec, buffers=Params(source["sent.buffers"], like.buffers.spec))
    row = {n[4:]: t.clone() for n, t in tensors.items() if n.startswith("row/")} if head["row"] else None
    extras = states_in(tensors, "extra", head["note"], lambda t: t)
    return ClientTask(
        head["place"],
        head["client"],
        head["occurrence"],
        head["round"],
        plan_in(head["plan"], sets),
        sent,
        extras,
        row,
        head["lr"],
    )


def reply_out(reply: Reply) -> tuple[Plain, dict[str, Tensor]]:
    """A reply as plain data and tensors."""
    note: Plain = {}
    tensors = {"delta": reply.delta.flat, "statistics": reply.statistics.flat}
    tensors |= states_out(reply.mail, "mail", note) | {f"row/{n}": t for n, t in reply.row.items()}
    specs = {
        k: [[n, list(s)] for n, s in zip(p.spec.names, p.spec.shapes, strict=True)]
        for k, p in (("delta", reply.delta), ("statistics", reply.statistics))
    }
    head = {
        "place": reply.place,
        "client": reply.client,
        "samples": reply.samples,
        "steps": reply.steps,
        "loss": reply.loss,
        "passes": dict(reply.passes),
        "front": dict(reply.front),
    }
    return head | {"note": note, "specs": specs}, tensors


def reply_in(head: Plain, tensors: Mapping[str, Tensor]) -> Reply:
    """Back from :func:`reply_out`, with tensors of its own."""
    delta = Params(tensors["delta"].clone(), spec_in(head["specs"]["delta"]))
    statistics = Params(tensors["statistics"].clone(), spec_in(head["specs"]["statistics"]))
    mail = states_in(tensors, "mail", head["note"], lambda t: t.clone())
    row = {n[4:]: t.clone() for n, t in tensors.items() if n.startswith("row/")}
    told = {name: head[name] for name in ("place", "client", "samples", "steps", "loss", "passes", "front")}
    return Reply(delta=delta, statistics=statistics, mail=mail, row=row, **told)
