"""Peak memory of a local step that trains one layer group: predicted from sizes, as budgets count it, and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedstrata.client.local_steps import LocalSteps
from fedstrata.client.optimizers import Optimizer
from fedstrata.client.peak_memory import Alive
from fedstrata.client.step_cost import whole
from fedstrata.client.worker import Worker
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.diagnostics.panel import Panel
from fedstrata.engine.assembly import RunComponents
from fedstrata.inference.finished_run import Finished
from fedstrata.studies.active_groups import groups_of, left_out, used
from fedstrata.studies.base import Outcome, Study

WHOLE = "whole model"
KINDS = ("predicted", "counted", "measured")
NUMBER = 4  # bytes of a float32


@dataclass(frozen=True)
class Memory(Study):
    """Peak bytes of a local step by the layer group that it trains, on one batch of the run's size, with the run's
    optimiser and the plain loss.

    Predicted: parameters of the model; gradients and optimiser state of the group; and the largest of three: the inputs
        of all layers from the
    group's first to the loss, once each, in the order in which they are called; what a single layer in front of it
    reads and makes; one number a parameter that Adam works with. Counted: parameters, gradients, state, and what is
    alive at the peak of one step on a small batch, scaled up; budgets go by it.
    Measured: the most bytes of tensors that are alive at one time in two steps; the second has the optimiser's state.

    INFERRED: the formula of the prediction.
    """

    title: ClassVar[str] = "Memory of layer groups"
    text: ClassVar[str] = (
        "Peak memory of a local step that trains one layer group, in MB of 10^6 bytes. Predicted from sizes:"
        " parameters, gradients and optimiser state of the group, inputs of the layers from the group to the loss, or"
        " more where a layer in front of it takes more. Counted: with what is alive at the peak of a step on a small"
        " batch, scaled up, which is what budgets go by. Measured: bytes of tensors that are alive together at the"
        " peak, parameters and batch included; what a kernel uses inside itself is not seen."
    )

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        numbers: dict[str, Any] = {}
        panels: list[Panel] = []
        notes: list[str] = []
        for label, run in runs.items():
            found = peaks(run.engine.parts)
            numbers[label] = found
            panels += _panels(label, found)
            notes += [f"{label}: {said}" for said in left_out(run.engine.parts.setup.layout, found["measured"])]
            if run.engine.parts.setup.layout.integers:
                notes.append(
                    f"{label}: the network grows over the run; told is the whole of it, as it stands in the last stage."
                )
        return Outcome(numbers, panels, notes=notes)


def peaks(parts: RunComponents) -> dict[str, Any]:
    """Bytes by kind (KINDS) and layer group, that of the whole model last, and the samples of the batch.

    All of the whole network.
    """
    kit, setup = parts.make_worker(), parts.setup
    layout, batch = setup.layout, batch_of(parts)
    with whole(kit):
        shown = groups_of(layout, used(kit, kit.bound.model, batch.x))
        groups: dict[str, Names] = {name: frozenset(layout.groups[name].names) for name in shown}
        groups[WHOLE] = layout.parameters - layout.integers
        return {
            "batch": len(batch.y),
            "predicted": {name: predicted(kit, batch, names) for name, names in groups.items()},
            "counted": {name: setup.load(names).memory for name, names in groups.items()},
            "measured": {name: measured(kit, batch, names) for name, names in groups.items()},
        }


def batch_of(parts: RunComponents) -> Batch:
    """A batch of the run's size of the first clients' samples; less where all together have less."""
    data, found, left = parts.federation, [], parts.setup.local.batch
    for client in parts.setup.eligible:
        index = data.training(client)[:left]
        found.append(index)
        left -= len(index)
        if not left:
            break
    index = torch.cat(found)
    return Batch(data.train.take(index), data.train.y[index])


def predicted(kit: Worker, batch: Batch, names: Names) -> int:
    """Peak bytes by sizes alone: nothing is differentiated. See :class:`Memory` for the formula.

    Args:
        kit: a worker.
        batch: that a step would read.
        names: of the parameters that would be trained.
    """
    calls = called(kit, batch, names)
    first = next((place for place, call in enumerate(calls) if call.trained), 0)
    kept = sum(dict(size for call in calls[first:] for size in call.read).values())
    passing = max((sum(dict([*call.read, *call.made]).values()) for call in calls[:first]), default=0)
    numbers = NUMBER * sum(b - a for a, b in kit.bound.spec.runs(names))
    optimizer = Optimizer(kit.setup.local.optimizer, kit.setup.local.momentum)
    return (
        NUMBER * kit.bound.spec.total
        + numbers * (1 + optimizer.slots())
        + max(kept, passing, numbers * optimizer.working())
    )


class Call(NamedTuple):
    """A layer that was called.

    Attributes:
        trained: whether it is one of those whose parameters are trained.
        read, made: (address, bytes) of the storages of what it was given and what it gave.
    """

    trained: bool
    read: list[tuple[int, int]]
    made: list[tuple[int, int]]


def called(kit: Worker, batch: Batch, names: Names) -> list[Call]:
    """Every call of a layer without layers of its own, in a forward pass in training mode."""
    bound = kit.bound
    owned = {id(part) for name, part in bound.parts.items() if name in names}
    calls: list[Call] = []
    held: list[Any] = []  # so that no address is used twice

    def note(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        held.append((given, output))
        calls.append(Call(any(id(p) in owned for p in module.parameters()), _storages(given), _storages(output)))

    leaves = [m for root in (bound.body, bound.head) for m in root.modules() if not any(True for _ in m.children())]
    handles = [leaf.register_forward_hook(note) for leaf in leaves]
    try:
        bound.mode(training=True)
        bound.draw_from(torch.Generator().manual_seed(0))
        kit.features.clear()
        with torch.no_grad():
            kit.plain_loss(bound.model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _storages(values: Any) -> list[tuple[int, int]]:
    found = [t.untyped_storage() for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]
    return [(storage.data_ptr(), storage.nbytes()) for storage in found]


def measured(kit: Worker, batch: Batch, names: Names) -> int:
    """Peak bytes of two steps that train these parameters: parameters, batch, and tensors that were made since.

    The model is left as it was.
    """
    bound = kit.bound
    flat, buffers = bound.flat.detach().clone(), bound.statistics.flat.clone()
    bound.mode(training=True)
    bound.draw_from(torch.Generator().manual_seed(0))
    with Alive([bound.flat, bound.statistics.flat]) as alive:
        own = Batch(batch.x.clone(), batch.y.clone())
        stepper = LocalSteps(kit, kit.plain_loss, lambda g: g, names, kit.setup.local.lr)
        stepper.step(own)
        stepper.step(own)
    kit.features.clear()
    with torch.no_grad():
        bound.flat.copy_(flat)
        bound.statistics.flat.copy_(buffers)
    bound.train_only(kit.setup.layout.parameters)
    return NUMBER * bound.spec.total + int(alive.peak)


def _panels(label: str, found: Mapping[str, Mapping[str, int]]) -> list[Panel]:
    groups = list(found["measured"])
    series = {kind: [found[kind][g] / 1e6 for g in groups] for kind in KINDS}
    whole = found["measured"][WHOLE]
    ratios = {
        "measured over predicted": [found["measured"][g] / found["predicted"][g] for g in groups],
        "measured over counted": [found["measured"][g] / found["counted"][g] for g in groups],
        "measured over whole model": [found["measured"][g] / whole for g in groups],
    }
    return [
        Panel(f"Peak memory of a step: {label}", Memory.text, "bars", groups, series, x_name="trained", y_name="MB"),
        Panel(f"Peak memory, ratios: {label}", Memory.text, "table", groups, ratios, x_name="trained"),
    ]
