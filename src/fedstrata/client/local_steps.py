"""What one batch does: to a client's parameters, or to a value that is carried along.

The loop over batches stands in ``round.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedstrata.client.worker import Worker
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.core.params import Params
from fedstrata.core.piece import Gradient, Loss


class LocalSteps:
    """Local steps of one client on the bound vector.

    Args:
        kit: the worker.
        loss: with middleware.
        gradient: middleware round the gradient, innermost first.
        names: parameters that move.
        lr: learning rate.
        custom: a piece's own optimiser step, or None.
        carry: what that step starts with.
    """

    def __init__(
        self,
        kit: Worker,
        loss: Loss,
        gradient: Callable[[Gradient], Gradient],
        names: Names,
        lr: float,
        custom: Callable[..., Any] | None = None,
        carry: Any = None,
    ) -> None:
        self.kit, self.loss, self.lr, self.custom, self.carry = kit, loss, lr, custom, carry
        self.optimizer = kit.optimizer()
        self.total = 0.0
        self.count = 0
        self.samples = 0
        bound = kit.bound
        bound.train_only(names)
        self.names = [n for n in bound.spec.names if n in names]
        self.runs = bound.spec.runs(names)
        flat = bound.flat.detach()
        self.values = [flat[a:b] for a, b in self.runs]
        self.tensors = [bound.parts[n].detach().view(-1) for n in self.names]
        self.gradient = gradient(self._base)
        untouched = self.gradient == self._base and custom is None and kit.local.clip is None
        self.direct = untouched  # no pass over the whole vector is needed

    def _slopes(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        self.kit.memo.clear()
        value = self.loss(self.kit.bound.params, batch)
        self._note(float(value.detach()))
        return self.kit.bound.slopes(value, self.names)

    def _base(self, p: Params, batch: Batch) -> Params:
        """The gradient as one vector of its own."""
        bound = self.kit.bound
        if p.flat is not bound.flat:
            slope, found = self.kit.slope(self.loss, p, batch)
            self._note(found)
            return slope
        return self._joined(*self._slopes(batch))

    def _joined(self, slopes: Sequence[Tensor], whole: Tensor | None) -> Params:
        spec = self.kit.bound.spec
        joined = torch.cat([s.reshape(-1) for s in slopes])
        if len(self.names) < len(spec.names):
            everything, at = torch.zeros(spec.total, dtype=joined.dtype), 0
            for a, b in self.runs:
                everything[a:b] = joined[at : at + b - a]
                at += b - a
            joined = everything
        return Params(joined if whole is None else joined.add_(whole), spec)

    def _note(self, loss: float) -> None:
        self.total += loss
        self.count += 1

    def step(self, batch: Batch) -> None:
        """One batch."""
        self.samples += len(batch.y)
        bound = self.kit.bound
        if self.custom is not None:
            moved, self.carry = self.custom(bound.params, batch, self.gradient, self.carry)
            with torch.no_grad():
                for value, (a, b) in zip(self.values, self.runs, strict=True):
                    value.copy_(moved.flat[a:b])
            return
        if self.direct:
            slopes, whole = self._slopes(batch)
            if whole is None:
                self.optimizer.step(self.tensors, [s.reshape(-1) for s in slopes], self.lr)
                return
            self.direct = False  # the loss has terms on the whole vector, in this phase's every step
            flat = self._joined(slopes, whole).flat
        else:
            flat = self.gradient(bound.params, batch).flat
        self.optimizer.step(self.values, [flat[a:b] for a, b in self.runs], self.lr)


class Fold:
    """Carries a value over batches; nothing is trained."""

    def __init__(self, function: Callable[[Any, Batch], Any], carry: Any) -> None:
        self.function, self.carry, self.samples = function, carry, 0

    def step(self, batch: Batch) -> None:
        """One batch."""
        self.samples += len(batch.y)
        self.carry = self.function(self.carry, batch)
