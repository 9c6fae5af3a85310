"""Tasks and replies as plain data (JSON) plus named tensors, and as bytes, for workers in other processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from torch import Size, Tensor

from fedstrata.client.task import ClientTask
from fedstrata.core.layout import Layout, Names
from fedstrata.core.params import Model, Params, Spec
from fedstrata.core.piece import Reply
from fedstrata.core.plan import Phase, Plan
from fedstrata.core.state import STATISTICS, ClientState, State
from fedstrata.storage import container

Plain = dict[str, Any]
SETS = ("train", "download", "upload", "aggregate", "client_local")


class NameSets:
    """Sets of tensor names as numbers: bit i stands for the layout's i-th tensor."""

    def __init__(self, layout: Layout) -> None:
        self.names = tuple(layout.entries)
        self.bit = {n: 1 << i for i, n in enumerate(self.names)}
        self.full = (1 << len(self.names)) - 1
        self.known: dict[int, Names] = {self.full: frozenset(self.names)}

    def number(self, names: Names | None) -> str | None:
        """Return the set as hexadecimal text, or None."""
        return None if names is None else f"{sum(self.bit[n] for n in names):x}"

    def back(self, number: str | None) -> Names | None:
        """Return the set of a number."""
        if number is None:
            return None
        value = int(number, 16)
        if value not in self.known:
            self.known[value] = frozenset(n for n, bit in self.bit.items() if value & bit)
        return self.known[value]


def plan_out(plan: Plan, sets: NameSets) -> Plain:
    """Return a client's plan as plain data."""
    phases = [[p.name, sets.number(p.train), p.epochs, p.steps, p.lr] for p in plan.phases]
    return {"phases": phases} | {name: sets.number(getattr(plan, name)) for name in SETS}


def plan_in(data: Plain, sets: NameSets) -> Plan:
    """Return the plan of :func:`plan_out`."""
    phases = tuple(
        Phase(name, sets.back(train), epochs, steps, lr) for name, train, epochs, steps, lr in data["phases"]
    )
    parts: dict[str, Any] = {name: sets.back(data[name]) for name in SETS}
    return Plan(**parts, phases=phases)


def states_out(states: Mapping[str, State], prefix: str, kinds: Plain) -> dict[str, Tensor]:
    """Return pieces' states as tensors; ``kinds`` takes down which are parameters or models, and of which names."""
    tensors = {}
    for piece, state in states.items():
        for key, value in state.items():
            name = f"{prefix}/{piece}/{key}"
            tensors[name] = value.flat if isinstance(value, Params) else value
            kinds[name] = spec_out(value.spec) if isinstance(value, Params) else None
            if isinstance(value, Model):
                tensors[name + STATISTICS] = value.statistics.flat
                kinds[name + STATISTICS] = spec_out(value.statistics.spec)
    return tensors


def states_in(
    tensors: Mapping[str, Tensor], prefix: str, kinds: Plain, take: Callable[[Tensor], Tensor]
) -> dict[str, State]:
    """Return the states of :func:`states_out`."""
    states: dict[str, State] = {}
    for name in kinds:
        if not name.startswith(prefix + "/") or name.endswith(STATISTICS):
            continue
        _, piece, key = name.split("/", 2)
        states.setdefault(piece, State())[key] = _value(name, tensors, kinds, take)
    return states


def _value(name: str, tensors: Mapping[str, Tensor], kinds: Plain, take: Callable[[Tensor], Tensor]) -> Params | Tensor:
    tensor, shapes, extra = take(tensors[name]), kinds[name], name + STATISTICS
    if shapes is None:
        return tensor
    params = Params(tensor, spec_in(shapes))
    return Model(params, Params(take(tensors[extra]), spec_in(kinds[extra]))) if extra in kinds else params


def spec_out(spec: Spec) -> list[Any]:
    """Return names and shapes as plain data."""
    return [[name, list(shape)] for name, shape in zip(spec.names, spec.shapes, strict=True)]


def spec_in(shapes: list[Any]) -> Spec:
    """Return names and shapes from plain data."""
    return Spec(tuple(n for n, _ in shapes), tuple(Size(s) for _, s in shapes))


def client_state_out(state: ClientState | None) -> dict[str, Tensor]:
    """Return a client's stored tensors by name."""
    return {} if state is None else {f"state/{name}": tensor for name, tensor in state.flat().items()}


def client_state_in(tensors: Mapping[str, Tensor]) -> ClientState:
    """Return the state of :func:`client_state_out`, with tensors that may be kept."""
    stored = {n.removeprefix("state/"): t.clone() for n, t in tensors.items() if n.startswith("state/")}
    return ClientState.from_flat(stored)


def task_out(task: ClientTask, sets: NameSets, *, shared: bool) -> tuple[Plain, dict[str, Tensor]]:
    """Return one client's task; ``shared`` means that the model it is sent is in the round's common memory."""
    kinds: Plain = {}
    tensors = states_out(task.down_payload, "down", kinds) | client_state_out(task.client_state)
    if not shared:
        tensors |= {"sent": task.sent.flat, "sent.statistics": task.sent.statistics.flat}
    head = {
        "cohort_index": task.cohort_index,
        "client": task.client,
        "occurrence": task.occurrence,
        "round": task.round,
        "lr": task.lr,
        "plan": plan_out(task.plan, sets),
        "kinds": kinds,
        "stored": task.client_state is not None,
        "shared": shared,
    }
    return head, tensors


def task_in(
    head: Plain, tensors: Mapping[str, Tensor], common: Mapping[str, Tensor], sets: NameSets, like: Model
) -> ClientTask:
    """Return the task of :func:`task_out`; ``like`` gives the model's names."""
    source = common if head["shared"] else tensors
    statistics = Params(source["sent.statistics"], like.statistics.spec)
    return ClientTask(
        cohort_index=head["cohort_index"],
        client=head["client"],
        occurrence=head["occurrence"],
        round=head["round"],
        plan=plan_in(head["plan"], sets),
        sent=Model(Params(source["sent"], like.spec), statistics),
        down_payload=states_in(tensors, "down", head["kinds"], lambda t: t),
        client_state=client_state_in(tensors) if head["stored"] else None,
        lr=head["lr"],
    )


def reply_out(reply: Reply) -> tuple[Plain, dict[str, Tensor]]:
    """Return a reply as plain data and tensors."""
    kinds: Plain = {}
    tensors = {"delta": reply.delta.flat, "statistics": reply.statistics.flat}
    tensors |= states_out(reply.up_payload, "up", kinds) | client_state_out(reply.client_state)
    head = {
        "cohort_index": reply.cohort_index,
        "client": reply.client,
        "samples": reply.samples,
        "steps": reply.steps,
        "loss": reply.loss,
        "cost_by_phase": dict(reply.cost_by_phase),
        "activation_cache_use": dict(reply.activation_cache_use),
    }
    specs = {"delta": spec_out(reply.delta.spec), "statistics": spec_out(reply.statistics.spec)}
    return {"facts": head, "kinds": kinds, "specs": specs}, tensors


def reply_in(head: Plain, tensors: Mapping[str, Tensor]) -> Reply:
    """Return the reply of :func:`reply_out`, with tensors that may be kept."""
    return Reply(
        delta=Params(tensors["delta"].clone(), spec_in(head["specs"]["delta"])),
        statistics=Params(tensors["statistics"].clone(), spec_in(head["specs"]["statistics"])),
        up_payload=states_in(tensors, "up", head["kinds"], lambda t: t.clone()),
        client_state=client_state_in(tensors),
        **head["facts"],
    )


# ---- bytes


def task_bytes(task: ClientTask, sets: NameSets) -> bytes:
    """Return one client's task as bytes, for a worker that shares no memory."""
    return to_bytes(*task_out(task, sets, shared=False))


def task_from_bytes(data: bytes, sets: NameSets, like: Model) -> ClientTask:
    """Return the task of :func:`task_bytes`."""
    head, tensors = from_bytes(data)
    return task_in(head, tensors, {}, sets, like)


def reply_bytes(reply: Reply) -> bytes:
    """Return a reply as bytes."""
    return to_bytes(*reply_out(reply))


def reply_from_bytes(data: bytes) -> Reply:
    """Return the reply of :func:`reply_bytes`."""
    return reply_in(*from_bytes(data))


def to_bytes(head: Plain, tensors: Mapping[str, Tensor]) -> bytes:
    """Return plain data and tensors as one safetensors container."""
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    start, order, _ = container.head(shapes, {"head": json.dumps(head)})
    return b"".join([start, *(container.raw(tensors[name]) for name in order)])


def from_bytes(data: bytes) -> tuple[Plain, dict[str, Tensor]]:
    """Return the plain data and tensors of :func:`to_bytes`."""
    view = memoryview(data).cast("B")
    contents = container.parse(view, container.LIMITS)
    return json.loads(contents.metadata["head"]), container.tensors(contents, view)
