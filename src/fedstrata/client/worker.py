"""What a worker owns: a bound module, its functions under a method, and what is fixed for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedstrata.client.activation_cache import ActivationCache
from fedstrata.client.frozen_prefix import NetworkCut, Traced, cut, doubt
from fedstrata.client.optimizers import Optimizer
from fedstrata.core.chain import Method, name_of
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch, BoundModel, Function, Net, gradient_at
from fedstrata.core.params import Params
from fedstrata.core.piece import ClientContext, Gradient, Loss
from fedstrata.core.plan import Setup


class ClientData(Protocol):
    """What the engine reads of a federation; see ``fedstrata.data``."""

    @property
    def train(self) -> Any:
        """All training samples: ``take``, ``y``, ``lazy``."""

    @property
    def augment(self) -> Any:
        """Changes to training batches, or None."""

    def training(self, client: int) -> Tensor:
        """[n] int64 positions of a client's training samples."""

    def counts(self, client: int) -> Tensor:
        """[classes] int64 labels among them."""


@dataclass(frozen=True)
class PrivateLocalSettings:
    """Local settings that pieces do not see."""

    draw: str = "cycle"
    clip: float | None = None
    precision: str = "float32"
    keep: int = 0


@dataclass
class Worker:
    """What a worker owns: a bound module and what is fixed for a run. Never shared between threads.

    ``traced`` is the model's body as a graph, or why there is none; it is shared by all workers.
    """

    bound: BoundModel
    net: Net
    method: Method
    setup: Setup
    data: ClientData
    local: PrivateLocalSettings
    memo: FeatureCache
    costs: dict[str, float] = field(default_factory=dict)  # FLOPs a sample, by purpose; filled by a probe
    traced: Traced | str | None = None
    cuts: dict[Names, NetworkCut | str | None] = field(default_factory=dict)

    @cached_property
    def batch_dependent(self) -> bool:
        """Whether a norm looks at the batch, so that a batch of one sample cannot be trained on."""
        return bool(self.bound.norms)

    def optimizer(self) -> Optimizer:
        """A local optimiser with empty state."""
        s = self.setup
        return Optimizer(s.optimizer, s.momentum, s.weight_decay, self.local.clip)

    def autocast(self) -> AbstractContextManager[None]:
        """The precision that forward passes run in."""
        return precision(self.local)

    def keep(self, names: Names, samples: int, *, again: bool) -> ActivationCache | str | None:
        """What is kept in front of these parameters while they alone are trained; why nothing is; or None where nothing
        lies in front.

        Args:
            names: of the trained parameters.
            samples: of the client.
            again: whether samples are read more than once.
        """
        if len(names) == len(self.setup.layout.parameters) or not self.local.keep or self.traced is None:
            return None
        found = self.cut(names)
        if not isinstance(found, NetworkCut):
            return found
        if any(piece.splits for piece in self.method.pieces):
            return "the method looks at parts of batches"
        if not again:
            return "each sample is read once"
        if found.bytes * samples > self.local.keep * 1e6:
            return f"a client's samples would take more than local.keep={self.local.keep} MB"
        return ActivationCache(found, samples, autocast=self.local.precision != "float32")

    def cut(self, names: Names) -> NetworkCut | str | None:
        """The model's body in two parts for the training of these parameters; why not.

        Or None where nothing lies in front.
        """
        if names not in self.cuts:
            self.cuts[names] = self._cut(names)
        return self.cuts[names]

    def _cut(self, names: Names) -> NetworkCut | str | None:
        traced = "the network is another one in other rounds" if self.setup.layout.settings else self.traced
        if not isinstance(traced, Traced):
            return traced
        made = cut(traced, self.bound, names)
        if not isinstance(made, NetworkCut):
            return made
        if self.data.augment is not None:
            return "samples are augmented, anew in each epoch"
        return doubt(made, self.bound, names, self.setup.params, traced.probe, self.autocast) or made

    def slope(self, loss: Loss, p: Params, batch: Batch) -> tuple[Params, float]:
        """Gradient at parameters that the module is not bound to, and the loss."""
        self.memo.clear()
        return gradient_at(loss, p, batch)

    def middleware(
        self, views: Mapping[str, ClientContext]
    ) -> tuple[Loss, Callable[[Gradient], Gradient], Callable[..., Any] | None]:
        """The chain's loss, its gradient middleware and its own optimiser step (None is the run's), for one phase.

        Args:
            views: of the pieces, by name; while training, their ``gradient`` is that of the chain's loss.
        """
        loss: Loss = self.plain_loss
        named = self.method.named
        for name, piece in named.items():
            loss = piece.objective(loss, views[name])

        def wrap(base: Gradient) -> Gradient:
            for view in views.values():
                view.gradient = base
            for name, piece in named.items():
                base = piece.gradient(base, views[name])
            return base

        owner = self.method.owner("step")
        if owner.step is None:
            return loss, wrap, None
        step, own = owner.step, views[name_of(owner)]
        return loss, wrap, lambda p, b, g, c: step(p, b, g, c, own)

    def plain_loss(self, p: Params, batch: Batch) -> Tensor:
        """Mean loss over the batch."""
        with self.autocast():
            output = self.net(p, batch.x)
        return batch.mean(self.net.loss(output.float() if output.dtype == torch.bfloat16 else output, batch.y))


def precision(local: PrivateLocalSettings) -> AbstractContextManager[None]:
    """The precision that forward passes run in."""
    return nullcontext() if local.precision == "float32" else torch.autocast("cpu", dtype=torch.bfloat16)


class FlopCounter(FlopCounterMode):
    """torch's counter without its hooks on modules, which cannot stand a module that is called on a parameter (a
    parametrised layer).
    """

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = _NoModules()  # type: ignore[assignment]


class _NoModules:
    """Counts everything under one name."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class FeatureCache:
    """Features of the batch in hand, so that a loss term on them costs no second forward pass (nor a second dropout
    mask).
    """

    def __init__(self, features: Function) -> None:
        self.features = features
        self.known: list[tuple[Tensor, Tensor, str, Tensor]] = []

    def __call__(self, p: Params, x: Tensor) -> Tensor:
        """[B, d] features, computed once for each (parameters, batch) since the last :meth:`clear`."""
        for flat, seen, still, z in self.known:
            if flat is p.flat and seen is x and still == p.still:
                return z
        z = self.features(p, x)
        self.known.append((p.flat, x, p.still, z))
        return z

    def clear(self) -> None:
        """Forget; called before every evaluation of a loss."""
        self.known.clear()


def bind_net(
    module: nn.Module, head: str, loss: Callable[[Tensor, Tensor], Tensor], method: Method
) -> tuple[BoundModel, Net, FeatureCache]:
    """A bound copy of a module and its functions under a method."""
    bound = BoundModel(module, head)
    net = method.model(bound.net(loss))
    bound.attach(net)
    memo = FeatureCache(net.features)
    return bound, replace(net, features=memo, initial={}), memo  # the values live in the flat vector now
