"""Find the layers that a network uses; a network that grows does not use all of them in every stage."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from fedstrata.client.worker import Worker
from fedstrata.core.layout import Layout, Names
from fedstrata.core.params import Model, Params
from fedstrata.inference.finished_run import Finished

PROBE = 2  # samples of the forward pass; norms without running statistics need two


def used_parameters(worker: Worker, model: Model, x: Tensor) -> Names:
    """Return the names of the parameters that the output depends on, in evaluation mode, without integers.

    Args:
        worker: whose network is used.
        model: its integers decide which layers the network uses.
        x: [N, *shape] samples, of which the first two are read.
    """
    views = {name: part.detach().requires_grad_() for name, part in Params(model.flat, model.spec).views.items()}
    point = Model(Params(model.flat, model.spec, eval_mode="eval", views=views), model.statistics)
    worker.features.clear()
    with torch.enable_grad():
        grads = torch.autograd.grad(worker.net(point, x[:PROBE]).sum(), list(views.values()), allow_unused=True)
    worker.features.clear()
    return (
        frozenset(name for name, grad in zip(views, grads, strict=True) if grad is not None)
        - worker.setup.layout.integers
    )


def groups_of(layout: Layout, names: Names) -> list[str]:
    """Return the layer groups that hold some of these parameters, shallow to deep."""
    return [name for name, group in layout.groups.items() if not names.isdisjoint(group.names)]


def parameters_used_by(run: Finished) -> Names:
    """Return the names of the parameters that the served network of a run uses."""
    samples = run.federation.train
    return used_parameters(run.engine.worker, run.served, samples.take(torch.arange(min(PROBE, len(samples)))))


class ServedNetwork(nn.Module):
    """Runs the served network of a run in the engine's modules, in evaluation mode, so that hooks see its layers.

    It is valid until the engine's worker is used for something else.

    Args:
        run: the finished run.
    """

    def __init__(self, run: Finished) -> None:
        super().__init__()
        self._worker = run.engine.worker
        self._worker.bound.load(run.served)
        self._worker.bound.mode(training=False)

    def owner(self, weight: str) -> nn.Module | None:
        """Return the module that holds this weight; None where the method holds it outside of all modules."""
        bound = self._worker.bound
        modules = (module for root in (bound.body, bound.head) for module in root.modules())
        return next((module for module in modules if module._parameters.get("weight") is bound.parts[weight]), None)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, *shape] to [B, classes]."""
        self._worker.features.clear()
        return self._worker.net(self._worker.bound.model, x)


def left_out(layout: Layout, shown: Collection[str]) -> list[str]:
    """Return a note on the layer groups that are not shown, if there are any; groups of integers are no layers."""
    names = [
        name
        for name, group in layout.groups.items()
        if name not in shown and not layout.integers.issuperset(group.names)
    ]
    return [f"left out, as the network does not use them: {', '.join(names)}."] if names else []
