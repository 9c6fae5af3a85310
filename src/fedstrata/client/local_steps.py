"""What one batch does to a client's parameters, or to a value that is carried along; and the only local loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedstrata.client.worker import Worker
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.core.params import Params
from fedstrata.core.piece import Gradient, Loss


class Stepper(Protocol):
    """Something that takes a local step."""

    def step(self, batch: Batch) -> None:
        """Take one step on one batch."""


class StepObserver(Protocol):
    """Something that watches the steps of a client's main training."""

    def before_step(self, steps: LocalSteps, gradients: Sequence[Tensor] | None) -> None:
        """See the gradients of what moves, in layout order and before clipping; None where a piece takes the step."""

    def after_step(self, steps: LocalSteps) -> None:
        """See the parameters after the step, in the worker's bound vector."""


def run_steps(stepper: Stepper, batches: Iterable[Batch]) -> None:
    """Take a step on every batch: the only local loop."""
    for batch in batches:
        stepper.step(batch)


class LocalSteps:
    """Local steps of one client on the bound vector.

    Args:
        worker: who trains.
        loss: with middleware.
        gradient: middleware round the gradient, innermost first.
        names: parameters that move.
        lr: learning rate.
        custom: a piece's optimizer step, or None.
        opt_state: what that step starts with.
        observer: watches the steps.
    """

    def __init__(
        self,
        worker: Worker,
        loss: Loss,
        gradient: Callable[[Gradient], Gradient],
        names: Names,
        lr: float,
        custom: Callable[..., Any] | None = None,
        opt_state: Any = None,
        observer: StepObserver | None = None,
    ) -> None:
        self.observer = observer
        self.worker, self.loss, self.lr, self.custom, self.opt_state = worker, loss, lr, custom, opt_state
        self.optimizer = worker.optimizer()
        self.total_loss = 0.0
        self.count = 0
        self.samples = 0
        bound = worker.bound
        bound.train_only(names)
        self.names = [n for n in bound.spec.names if n in names]
        self.runs = bound.spec.runs(names)
        flat = bound.flat.detach()
        self.values = [flat[a:b] for a, b in self.runs]
        self.tensors = [bound.parts[n].detach().view(-1) for n in self.names]
        self.gradient = gradient(self._base)
        # without middleware no pass over the whole vector is needed
        self.direct = self.gradient == self._base and custom is None and worker.setup.local.clip is None

    def _gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        self.worker.features.clear()
        value = self.loss(self.worker.bound.model, batch)
        self._note(float(value.detach()))
        return self.worker.bound.gradients(value, self.names)

    def _base(self, p: Params, batch: Batch) -> Params:
        """Return the gradient as a new vector."""
        bound = self.worker.bound
        if p.flat is not bound.flat:
            grad, loss = self.worker.gradient(self.loss, p, batch)
            self._note(loss)
            return grad
        return self._joined(*self._gradients(batch))

    def _joined(self, grads: Sequence[Tensor], whole: Tensor | None) -> Params:
        spec = self.worker.bound.spec
        joined = torch.cat([g.reshape(-1) for g in grads])
        if len(self.names) < len(spec.names):
            everything, at = torch.zeros(spec.total, dtype=joined.dtype), 0
            for a, b in self.runs:
                everything[a:b] = joined[at : at + b - a]
                at += b - a
            joined = everything
        return Params(joined if whole is None else joined.add_(whole), spec)

    def _note(self, loss: float) -> None:
        self.total_loss += loss
        self.count += 1

    def step(self, batch: Batch) -> None:
        """Move the parameters by one batch."""
        self.samples += len(batch.y)
        bound = self.worker.bound
        if self.custom is not None:
            self._notify(None)
            moved, self.opt_state = self.custom(bound.model, batch, self.gradient, self.opt_state)
            with torch.no_grad():
                for value, (a, b) in zip(self.values, self.runs, strict=True):
                    value.copy_(moved.flat[a:b])
            self._done()
            return
        if self.direct:
            grads, whole = self._gradients(batch)
            if whole is None:
                self._move(self.tensors, [g.reshape(-1) for g in grads])
                return
            self.direct = False  # the loss has terms on the whole vector, in this phase's every step
            flat = self._joined(grads, whole).flat
        else:
            flat = self.gradient(bound.model, batch).flat
        self._move(self.values, [flat[a:b] for a, b in self.runs])

    def _move(self, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        self._notify(gradients)
        self.optimizer.step(values, gradients, self.lr)
        self._done()

    def _notify(self, gradients: Sequence[Tensor] | None) -> None:
        if self.observer is not None:
            self.observer.before_step(self, gradients)

    def _done(self) -> None:
        if self.observer is not None:
            self.observer.after_step(self)


class Fold:
    """Carry a value over batches; nothing is trained."""

    def __init__(self, function: Callable[[Any, Batch], Any], carry: Any) -> None:
        self.function, self.carry, self.samples = function, carry, 0

    def step(self, batch: Batch) -> None:
        """Fold one batch."""
        self.samples += len(batch.y)
        self.carry = self.function(self.carry, batch)
