"""What a worker owns: a bound model, its functions under a method, and what is fixed for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedstrata.client.activation_cache import CachePlanner
from fedstrata.client.optimizers import Optimizer
from fedstrata.core.chain import Method
from fedstrata.core.network import Batch, BoundModel, Function, Net, gradient_at
from fedstrata.core.params import EvalMode, Params
from fedstrata.core.piece import ClientContext, Gradient, Loss
from fedstrata.core.plan import LocalSettings, Setup


class ClientData(Protocol):
    """What the engine reads of a federation; see ``fedstrata.data``."""

    @property
    def train(self) -> Any:
        """All training samples: ``take``, ``y``, ``lazy``."""

    @property
    def augment(self) -> Any:
        """Changes to training batches, or None."""

    def training(self, client: int) -> Tensor:
        """Return [n] int64 positions of a client's training samples."""

    def counts(self, client: int) -> Tensor:
        """Return [classes] int64 labels among them."""


@dataclass
class Worker:
    """A bound model and what is fixed for a run. Never shared between threads.

    Attributes:
        bound: the model; net: its functions under the method.
        method, setup, data: of the run.
        features: activations of the current batch that enter the head.
        cache: plans the caching of activations of frozen layers.
        costs: FLOPs a sample, by purpose; filled by a cost probe.
    """

    bound: BoundModel
    net: Net
    method: Method
    setup: Setup
    data: ClientData
    features: FeatureCache
    cache: CachePlanner
    costs: dict[str, float] = field(default_factory=dict)

    @cached_property
    def batch_dependent(self) -> bool:
        """Whether a norm looks at the batch, so that a batch of one sample cannot be trained on."""
        return bool(self.bound.norms)

    def optimizer(self) -> Optimizer:
        """Return a local optimizer with empty state."""
        local = self.setup.local
        return Optimizer(local.optimizer, local.momentum, local.weight_decay, local.clip)

    def autocast(self) -> AbstractContextManager[None]:
        """Return the precision that forward passes run in, as a context."""
        return precision(self.setup.local)

    def gradient(self, loss: Loss, p: Params, batch: Batch) -> tuple[Params, float]:
        """Return the gradient at parameters that the module is not bound to, and the loss."""
        self.features.clear()
        return gradient_at(loss, p, batch)

    def middleware(
        self, contexts: Mapping[str, ClientContext]
    ) -> tuple[Loss, Callable[[Gradient], Gradient], Callable[..., Any] | None]:
        """Return the chain's loss, its gradient middleware and its optimizer step (None is the run's), for one phase.

        Args:
            contexts: of the pieces, by name; during training, their ``gradient`` is that of the chain's loss.
        """
        loss: Loss = self.plain_loss
        named = self.method.named
        for name, piece in named.items():
            loss = piece.objective(loss, contexts[name])

        def wrap(base: Gradient) -> Gradient:
            for context in contexts.values():
                context.gradient = base
            for name, piece in named.items():
                base = piece.gradient(base, contexts[name])
            return base

        owner = self.method.owner("step")
        if owner.step is None:
            return loss, wrap, None
        step, context = owner.step, contexts[owner.name]
        return loss, wrap, lambda p, b, g, state: step(p, b, g, state, context)

    def plain_loss(self, p: Params, batch: Batch) -> Tensor:
        """Return the mean loss over the batch."""
        with self.autocast():
            output = self.net(p, batch.x)
        return batch.mean(self.net.loss(output.float() if output.dtype == torch.bfloat16 else output, batch.y))


def precision(local: LocalSettings) -> AbstractContextManager[None]:
    """Return the precision that forward passes run in, as a context."""
    return nullcontext() if local.precision == "float32" else torch.autocast("cpu", dtype=torch.bfloat16)


class FlopCounter(FlopCounterMode):
    """Count FLOPs by torch's counter, without its hooks on modules.

    Those fail on a module that is called on a parameter (a parametrised layer).
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
    """Features of the current batch, so that a loss term on them costs no second forward pass.

    Nor does it draw a second dropout mask.
    """

    def __init__(self, features: Function) -> None:
        self.features = features
        self.entries: list[tuple[Tensor, Tensor, EvalMode, Tensor]] = []

    def __call__(self, p: Params, x: Tensor) -> Tensor:
        """Return [B, d] features, computed once for each (parameters, batch) since the last :meth:`clear`."""
        for flat, inputs, eval_mode, z in self.entries:
            if flat is p.flat and inputs is x and eval_mode == p.eval_mode:
                return z
        z = self.features(p, x)
        self.entries.append((p.flat, x, p.eval_mode, z))
        return z

    def clear(self) -> None:
        """Forget everything; called before every evaluation of a loss."""
        self.entries.clear()


def bind_net(
    module: nn.Module, head: str, loss: Callable[[Tensor, Tensor], Tensor], method: Method
) -> tuple[BoundModel, Net, FeatureCache]:
    """Bind a copy of a module and return it with its functions under a method."""
    bound = BoundModel(module, head)
    net = method.model(bound.net(loss))
    bound.attach(net)
    features = FeatureCache(net.features)
    return bound, replace(net, features=features, initial={}), features  # the values are in the flat vector now
