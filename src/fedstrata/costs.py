"""What one local step costs, measured on one batch: FLOPs and memory by what is trained, forward FLOPs by layer group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedstrata.kit import FlopCounter, Kit
from fedstrata.layout import Names
from fedstrata.net import Batch
from fedstrata.optim import Optimizer
from fedstrata.plan import Load


def cost(kit: Kit, batch: Batch, names: Names) -> Load:
    """FLOPs a sample and peak bytes of a batch of the configured size, when only these parameters are trained."""
    bound = kit.bound
    bound.mode(training=True)
    bound.draw_from(torch.Generator().manual_seed(0))
    bound.train_only(names)
    kept: dict[int, int] = {}
    parameters = bound.flat.untyped_storage().data_ptr()

    def keep(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() != parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    kit.memo.clear()
    with whole(kit), FlopCounter() as counter, saved_tensors_hooks(keep, lambda t: t):
        loss = kit.plain_loss(bound.params, batch)
        held = sum(kept.values())  # before the backward pass frees it
        if loss.requires_grad:  # not where these parameters are used in other rounds only
            bound.slopes(loss, [n for n in bound.spec.names if n in names])
    bound.train_only(kit.setup.layout.parameters)
    numbers = sum(stop - start for start, stop in bound.spec.runs(names))
    scale = kit.setup.batch / len(batch.y)
    slots = Optimizer(kit.setup.optimizer, kit.setup.momentum).slots()
    return Load(counter.get_total_flops() / len(batch.y), int(held * scale) + 4 * numbers * (1 + slots))


def forward(kit: Kit, batch: Batch) -> Mapping[str, int]:
    """FLOPs a sample of the forward pass, by layer group, shallow to deep; a product without parameters counts for the layer that it lies in."""
    bound, groups = kit.bound, kit.setup.layout.groups
    found = dict.fromkeys(groups, 0)
    bound.mode(training=True)
    bound.draw_from(torch.Generator().manual_seed(0))
    with torch.no_grad(), whole(kit), FlopCounter() as counter:

        def watch(module: nn.Module, group: str) -> None:
            started: list[int] = []
            module.register_forward_pre_hook(lambda *_: started.append(counter.get_total_flops()))
            module.register_forward_hook(lambda *_: found.update({group: found[group] + counter.get_total_flops() - started.pop()}))

        before = [(m, dict(m._forward_pre_hooks), dict(m._forward_hooks)) for root in (bound.body, bound.head) for m in root.modules()]
        try:
            for module, group in layers(kit):
                watch(module, group)
            kit.memo.clear()
            kit.plain_loss(bound.params, batch)
        finally:
            for module, first, later in before:
                for hooks, kept in ((module._forward_pre_hooks, first), (module._forward_hooks, later)):
                    hooks.clear()
                    hooks.update(kept)
    return {group: flops // len(batch.y) for group, flops in found.items()}


@contextmanager
def whole(kit: Kit) -> Iterator[None]:
    """All settings of the network are 0 for a while, which is the whole network."""
    parts = [kit.bound.parts[name] for name in kit.setup.layout.settings]
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


def layers(kit: Kit) -> list[tuple[nn.Module, str]]:
    """The outermost modules whose parameters all lie in one layer group, with that group."""
    bound, layout = kit.bound, kit.setup.layout
    owner = {id(part): layout.entries[name].group for name, part in bound.parts.items()}
    found: list[tuple[nn.Module, str]] = []

    def walk(module: nn.Module) -> None:
        groups = {owner[id(p)] for p in module.parameters() if id(p) in owner}
        if len(groups) == 1:
            found.append((module, groups.pop()))
        else:
            for child in module.children():
                walk(child)

    walk(bound.body)
    walk(bound.head)
    return found
