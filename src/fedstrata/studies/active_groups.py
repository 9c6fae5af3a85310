"""Which layers the network of a moment computes with: one that grows leaves some out, and settings of a network are no
layers.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from fedstrata.client.worker import Worker
from fedstrata.core.layout import Layout, Names
from fedstrata.core.params import Params
from fedstrata.inference.finished_run import Finished

PROBE = 2  # samples that are looked at; norms without running statistics need two


def used(kit: Worker, params: Params, x: Tensor) -> Names:
    """Names of the parameters that the output hangs on, in evaluation mode; never settings.

    Args:
        kit: a worker.
        params: the model, with statistics; its settings say which network it is.
        x: [N, *shape] samples, of which the first two are looked at.
    """
    views = {name: part.detach().requires_grad_() for name, part in Params(params.flat, params.spec).views.items()}
    still = Model(Params(params.flat, params.spec), params.statistics, still="eval", views=views)
    kit.features.clear()
    with torch.enable_grad():
        found = torch.autograd.grad(kit.net(still, x[:PROBE]).sum(), list(views.values()), allow_unused=True)
    kit.features.clear()
    return (
        frozenset(name for name, slope in zip(views, found, strict=True) if slope is not None)
        - kit.setup.layout.integers
    )


def groups_of(layout: Layout, names: Names) -> list[str]:
    """Layer groups that have some of these parameters, shallow to deep."""
    return [name for name, group in layout.groups.items() if not names.isdisjoint(group.names)]


def used_by(run: Finished) -> Names:
    """Names of the parameters that the served network of a run computes with."""
    samples = run.federation.train
    return used(run.engine.worker, run.served, samples.take(torch.arange(min(PROBE, len(samples)))))


class Standing(nn.Module):
    """The served network of a run in the engine's own modules, in evaluation mode: its layers can be looked at while
    the method computes with them.

    It stands until the engine's worker is used for something else.

    Args:
        run: the finished run.
    """

    def __init__(self, run: Finished) -> None:
        super().__init__()
        self._kit = run.engine.worker
        self._kit.bound.load(run.served)
        self._kit.bound.mode(training=False)

    def owner(self, weight: str) -> nn.Module | None:
        """The module that has this weight; None where the method keeps it outside of all modules."""
        bound = self._kit.bound
        modules = (module for root in (bound.body, bound.head) for module in root.modules())
        return next((module for module in modules if module._parameters.get("weight") is bound.parts[weight]), None)

    def forward(self, x: Tensor) -> Tensor:
        """[B, *shape] -> [B, classes]."""
        self._kit.memo.clear()
        return self._kit.net(self._kit.bound.model, x)


def left_out(layout: Layout, shown: Collection[str]) -> list[str]:
    """A note on the layer groups that are not shown, where there are any.

    Settings of a network are no layers, and nobody misses them.
    """
    names = [
        name
        for name, group in layout.groups.items()
        if name not in shown and not layout.integers.issuperset(group.names)
    ]
    return [f"left out, as the network does not use them: {', '.join(names)}."] if names else []
