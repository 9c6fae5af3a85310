"""Compute the peak memory of a local step that trains one layer group: predicted, counted and measured."""

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
from fedstrata.studies.active_groups import groups_of, left_out, used_parameters
from fedstrata.studies.base import Outcome, Study

WHOLE = "whole model"
KINDS = ("predicted", "counted", "measured")
NUMBER = 4  # bytes of a float32


@dataclass(frozen=True)
class Memory(Study):
    """Compute peak bytes of a local step by the layer group that it trains.

    The step uses one batch of the run's size, the run's optimiser and the plain loss. Predicted: parameters of the
    model; gradients and optimiser state of the group; and the largest of three: the inputs of all layers from the
    group's first to the loss, once each, in call order; the input and output of a single earlier layer; one working
    number of Adam for each parameter. Counted: parameters, gradients, state, and the tensors alive at the peak of one
    step on a small batch, scaled up; budgets use this number. Measured: the most bytes of tensors alive at one time in
    two steps; the second has the optimiser's state.

    INFERRED: the formula of the prediction.
    """

    title: ClassVar[str] = "Memory of layer groups"
    text: ClassVar[str] = (
        "Peak memory of a local step that trains one layer group, in MB of 10^6 bytes. Predicted from sizes:"
        " parameters, gradients and optimiser state of the group, inputs of the layers from the group to the loss, or"
        " more where an earlier layer needs more. Counted: from the tensors alive at the peak of a step on a small"
        " batch, scaled up; budgets use this number. Measured: bytes of tensors that are alive together at the peak,"
        " including parameters and batch; memory that kernels use internally is not measured."
    )

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        numbers: dict[str, Any] = {}
        panels: list[Panel] = []
        notes: list[str] = []
        for label, run in runs.items():
            peaks = peak_memory(run.engine.parts)
            numbers[label] = peaks
            panels += _panels(label, peaks)
            notes += [f"{label}: {note}" for note in left_out(run.engine.parts.setup.layout, peaks["measured"])]
            if run.engine.parts.setup.layout.integers:
                notes.append(
                    f"{label}: the network grows over the run; the numbers are of the whole network of the last stage."
                )
        return Outcome(numbers, panels, notes=notes)


def peak_memory(parts: RunComponents) -> dict[str, Any]:
    """Compute bytes by kind (KINDS) and layer group, with the whole model last, and the samples of the batch.

    All numbers are of the whole network.
    """
    worker, setup = parts.make_worker(), parts.setup
    layout, batch = setup.layout, batch_of(parts)
    with whole(worker):
        shown = groups_of(layout, used_parameters(worker, worker.bound.model, batch.x))
        groups: dict[str, Names] = {name: frozenset(layout.groups[name].names) for name in shown}
        groups[WHOLE] = layout.parameters - layout.integers
        return {
            "batch": len(batch.y),
            "predicted": {name: predicted(worker, batch, names) for name, names in groups.items()},
            "counted": {name: setup.load(names).memory for name, names in groups.items()},
            "measured": {name: measured(worker, batch, names) for name, names in groups.items()},
        }


def batch_of(parts: RunComponents) -> Batch:
    """Take a batch of the run's size from the first clients' samples; smaller if all clients have fewer."""
    data, taken, missing = parts.federation, [], parts.setup.local.batch
    for client in parts.setup.eligible:
        index = data.training(client)[:missing]
        taken.append(index)
        missing -= len(index)
        if not missing:
            break
    index = torch.cat(taken)
    return Batch(data.train.take(index), data.train.y[index])


def predicted(worker: Worker, batch: Batch, names: Names) -> int:
    """Compute peak bytes from sizes, without differentiation. See :class:`Memory` for the formula.

    Args:
        worker: whose network is used.
        batch: that a step would read.
        names: of the parameters that would be trained.
    """
    calls = layer_calls(worker, batch, names)
    first = next((i for i, call in enumerate(calls) if call.trained), 0)
    inputs = sum(dict(size for call in calls[first:] for size in call.inputs).values())
    passing = max((sum(dict([*call.inputs, *call.outputs]).values()) for call in calls[:first]), default=0)
    numbers = NUMBER * sum(b - a for a, b in worker.bound.spec.runs(names))
    optimizer = Optimizer(worker.setup.local.optimizer, worker.setup.local.momentum)
    return (
        NUMBER * worker.bound.spec.total
        + numbers * (1 + optimizer.slots())
        + max(inputs, passing, numbers * optimizer.working())
    )


class LayerCall(NamedTuple):
    """One call of a layer.

    Attributes:
        trained: whether the layer holds trained parameters.
        inputs, outputs: (address, bytes) of the storages of its arguments and of its result.
    """

    trained: bool
    inputs: list[tuple[int, int]]
    outputs: list[tuple[int, int]]


def layer_calls(worker: Worker, batch: Batch, names: Names) -> list[LayerCall]:
    """Record every call of a layer without sublayers, in a forward pass in training mode."""
    bound = worker.bound
    trained = {id(part) for name, part in bound.parts.items() if name in names}
    calls: list[LayerCall] = []
    held: list[Any] = []  # keeps storages alive, so that no address is used twice

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        held.append((inputs, output))
        is_trained = any(id(p) in trained for p in module.parameters())
        calls.append(LayerCall(is_trained, _storages(inputs), _storages(output)))

    leaves = [m for root in (bound.body, bound.head) for m in root.modules() if not any(True for _ in m.children())]
    handles = [leaf.register_forward_hook(record) for leaf in leaves]
    try:
        bound.mode(training=True)
        bound.draw_from(torch.Generator().manual_seed(0))
        worker.features.clear()
        with torch.no_grad():
            worker.plain_loss(bound.model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _storages(values: Any) -> list[tuple[int, int]]:
    storages = [t.untyped_storage() for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]
    return [(storage.data_ptr(), storage.nbytes()) for storage in storages]


def measured(worker: Worker, batch: Batch, names: Names) -> int:
    """Measure the peak bytes of two steps that train these parameters: parameters, batch, and new tensors.

    The model is restored afterwards.
    """
    bound = worker.bound
    flat, buffers = bound.flat.detach().clone(), bound.statistics.flat.clone()
    bound.mode(training=True)
    bound.draw_from(torch.Generator().manual_seed(0))
    with Alive([bound.flat, bound.statistics.flat]) as alive:
        copy = Batch(batch.x.clone(), batch.y.clone())
        stepper = LocalSteps(worker, worker.plain_loss, lambda g: g, names, worker.setup.local.lr)
        stepper.step(copy)
        stepper.step(copy)
    worker.features.clear()
    with torch.no_grad():
        bound.flat.copy_(flat)
        bound.statistics.flat.copy_(buffers)
    bound.train_only(worker.setup.layout.parameters)
    return NUMBER * bound.spec.total + int(alive.peak)


def _panels(label: str, peaks: Mapping[str, Mapping[str, int]]) -> list[Panel]:
    groups = list(peaks["measured"])
    series = {kind: [peaks[kind][g] / 1e6 for g in groups] for kind in KINDS}
    whole = peaks["measured"][WHOLE]
    ratios = {
        "measured over predicted": [peaks["measured"][g] / peaks["predicted"][g] for g in groups],
        "measured over counted": [peaks["measured"][g] / peaks["counted"][g] for g in groups],
        "measured over whole model": [peaks["measured"][g] / whole for g in groups],
    }
    return [
        Panel(f"Peak memory of a step: {label}", Memory.text, "bars", groups, series, x_name="trained", y_name="MB"),
        Panel(f"Peak memory, ratios: {label}", Memory.text, "table", groups, ratios, x_name="trained"),
    ]
