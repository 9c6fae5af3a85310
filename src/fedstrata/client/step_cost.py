"""Measure what one local step costs, on one batch.

FLOPs and memory are measured by what is trained, forward FLOPs by layer group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from fedstrata.client.optimizers import Optimizer
from fedstrata.client.peak_memory import Alive
from fedstrata.client.worker import FlopCounter, Worker
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.core.plan import Load


def cost(worker: Worker, batch: Batch, names: Names) -> Load:
    """Measure FLOPs a sample and peak bytes of a batch of the configured size, when only these parameters train."""
    bound, setup = worker.bound, worker.setup
    bound.mode(training=True)
    bound.draw_from(torch.Generator().manual_seed(0))
    bound.train_only(names)
    with whole(worker), FlopCounter() as counter:
        ahead, peak = _alive(worker, batch, names)
        flops = counter.get_total_flops() / len(batch.y)
        half = len(batch.y) // 2 if len(batch.y) >= 4 else 0  # a batch norm needs two
        less = _alive(worker, Batch(batch.x[:half], batch.y[:half]), names)[1] if half else 0
    worker.features.clear()
    bound.train_only(setup.layout.parameters)
    # what the backward pass makes for weights does not grow with the batch, so the line through two sizes is followed;
    # never below the forward pass
    more = setup.local.batch - len(batch.y)
    peak = max(peak + (peak - less) * more // (len(batch.y) - half), ahead * setup.local.batch // len(batch.y))
    numbers = 4 * sum(stop - start for start, stop in bound.spec.runs(names))
    optimizer = Optimizer(setup.local.optimizer, setup.local.momentum)
    return Load(
        flops, 4 * bound.spec.total + numbers * (1 + optimizer.slots()) + max(peak, numbers * optimizer.working())
    )


def _alive(worker: Worker, batch: Batch, names: Names) -> tuple[int, int]:
    """Return live bytes at the peak of the forward pass and of both passes, batch included.

    The second is less the gradients of what is trained.
    """
    bound = worker.bound
    worker.features.clear()
    with Alive([bound.flat, bound.statistics.flat]) as alive:
        loss = worker.plain_loss(bound.model, Batch(batch.x.clone(), batch.y.clone()))
        ahead = alive.peak
        if loss.requires_grad:  # not where these parameters are used in other rounds only
            bound.gradients(loss, [n for n in bound.spec.names if n in names])
    return ahead, max(ahead, alive.peak - 4 * sum(stop - start for start, stop in bound.spec.runs(names)))


def forward(worker: Worker, batch: Batch) -> Mapping[str, int]:
    """Return FLOPs a sample of the forward pass, by layer group, shallow to deep.

    A product without parameters counts for the layer that it lies in.
    """
    bound, groups = worker.bound, worker.setup.layout.groups
    result = dict.fromkeys(groups, 0)
    bound.mode(training=True)
    bound.draw_from(torch.Generator().manual_seed(0))
    with torch.no_grad(), whole(worker), FlopCounter() as counter:

        def watch(module: nn.Module, group: str) -> None:
            started: list[int] = []
            module.register_forward_pre_hook(lambda *_: started.append(counter.get_total_flops()))
            module.register_forward_hook(
                lambda *_: result.update({group: result[group] + counter.get_total_flops() - started.pop()})
            )

        before = [
            (m, dict(m._forward_pre_hooks), dict(m._forward_hooks))
            for root in (bound.body, bound.head)
            for m in root.modules()
        ]
        try:
            for module, group in layers(worker):
                watch(module, group)
            worker.features.clear()
            worker.plain_loss(bound.model, batch)
        finally:
            for module, first, later in before:
                for hooks, kept in ((module._forward_pre_hooks, first), (module._forward_hooks, later)):
                    hooks.clear()
                    hooks.update(kept)
    return {group: flops // len(batch.y) for group, flops in result.items()}


@contextmanager
def whole(worker: Worker) -> Iterator[None]:
    """Set all integers of the network to 0 for a while, which is the whole network."""
    parts = [worker.bound.parts[name] for name in worker.setup.layout.integers]
    before = [part.detach().clone() for part in parts]
    try:
        with torch.no_grad():
            for part in parts:
                part.zero_()
        yield
    finally:
        with torch.no_grad():
            for part, value in zip(parts, before, strict=True):
                part.copy_(value)


def layers(worker: Worker) -> list[tuple[nn.Module, str]]:
    """Return the outermost modules whose parameters all lie in one layer group, with that group."""
    bound, layout = worker.bound, worker.setup.layout
    owner = {id(part): layout.entries[name].group for name, part in bound.parts.items()}
    result: list[tuple[nn.Module, str]] = []

    def walk(module: nn.Module) -> None:
        groups = {owner[id(p)] for p in module.parameters() if id(p) in owner}
        if len(groups) == 1:
            result.append((module, groups.pop()))
        else:
            for child in module.children():
                walk(child)

    walk(bound.body)
    walk(bound.head)
    return result
