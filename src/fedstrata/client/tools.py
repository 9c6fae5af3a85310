"""What the engine does for pieces on a client: batches, random numbers, private training; and what all of it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedstrata.client.activation_cache import ActivationCache
from fedstrata.client.batch_order import Order
from fedstrata.client.frozen_prefix import NotCached
from fedstrata.client.local_steps import Fold, LocalSteps, run_steps
from fedstrata.client.task import ClientTask
from fedstrata.client.worker import FlopCounter, Worker
from fedstrata.common import random_streams
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.core.params import Model
from fedstrata.core.piece import Gradient, Loss


class ClientTools:
    """The tools of one client in one round; see :class:`fedstrata.core.piece.Tools`.

    Args:
        worker: who trains.
        task: of the client.
        probe: run the first batch of every stretch of steps only, under a FLOP counter.
    Attributes:
        index: positions of the client's training samples.
        cost_by_phase: samples that went through local steps, by purpose.
        cache_use: stretches of training, by what was cached.
        now: inside a stretch of steps, its purpose and the step.
    """

    def __init__(self, worker: Worker, task: ClientTask, *, probe: bool = False) -> None:
        self.worker, self.task, self.probe = worker, task, probe
        self.index = worker.data.training(task.client)
        self.cost_by_phase: dict[str, int] = {}
        self.cache_use: dict[str, int] = {}
        self.now: tuple[str | int, ...] = ()
        self._samples: tuple[Tensor, Tensor] | None = None

    # ---- batches

    def _order(self, purpose: str, share: float = 1.0) -> Order:
        setup, task = self.worker.setup, self.task
        n = max(1, int(share * len(self.index)))
        keys = (purpose, task.round, task.client, task.occurrence)
        return Order(setup.seed, keys, n, setup.local.batch, setup.local.draw, self.worker.batch_dependent)

    def positions(
        self, purpose: str, *, epochs: int | None = None, steps: int | None = None, share: float = 1.0
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (epoch, positions) of the batches for this purpose; a probe yields the first only."""
        for item in self._order(purpose, share).batches(epochs=epochs, steps=steps):
            yield item
            if self.probe:
                return

    def read(self, purpose: str, epoch: int, positions: Tensor) -> Batch:
        """Return the samples at these positions, augmented by a stream of (client, round, epoch, sample)."""
        data, task = self.worker.data, self.task
        if data.train.lazy:
            chosen = self.index[positions]
            x, y = data.train.take(chosen), data.train.y[chosen]
        else:
            if self._samples is None:
                self._samples = data.train.take(self.index), data.train.y[self.index]
            x, y = self._samples[0].index_select(0, positions), self._samples[1].index_select(0, positions)
        if data.augment is not None:
            keys = ("augment", purpose, task.round, task.client, task.occurrence, epoch)
            key = random_streams.key(self.worker.setup.seed, *keys)
            draws = random_streams.uniforms(key, self.index[positions].numpy(), data.augment.draws)
            x = data.augment(x, torch.from_numpy(draws))
        return Batch(x, y)

    def batches(
        self,
        purpose: str,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        share: float = 1.0,
        cache: ActivationCache | None = None,
    ) -> Iterator[Batch]:
        """Yield batches for one stretch of steps; an epoch or step count that is not given is the run's."""
        if epochs is None and steps is None:
            epochs, steps = self.worker.setup.local.epochs, self.worker.setup.local.steps
        outer = self.now
        for number, (epoch, positions) in enumerate(self.positions(purpose, epochs=epochs, steps=steps, share=share)):
            batch = self.read(purpose, epoch, positions)
            if cache is not None:
                cache.at(batch.x, positions)
            self.now = purpose, number
            yield batch
        self.now = outer

    # ---- random numbers

    def noise(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        """Draw numbers of the current local step, or of the whole round outside of steps."""
        return self.draw(name, shape, kind, self.now)

    def draw(self, name: str, shape: Sequence[int], kind: str, now: tuple[str | int, ...] = ()) -> Tensor:
        """Draw noise of a local step, (purpose, number), or of the whole round."""
        task = self.task
        generator = random_streams.torch_stream(
            self.worker.setup.seed, "noise", name, task.round, task.client, task.occurrence, *now
        )
        if kind == "uniform":
            return torch.rand(tuple(shape), generator=generator)
        return torch.randn(tuple(shape), generator=generator)

    # ---- private training

    def fit(
        self,
        start: Model,
        purpose: str,
        *,
        loss: Loss | None = None,
        gradient: Callable[[Gradient], Gradient] | None = None,
        train: Names | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
    ) -> Model:
        """Train privately; see :class:`fedstrata.core.piece.Tools`."""
        worker, task = self.worker, self.task
        if len(self.index) < (2 if worker.batch_dependent else 1):
            return start  # nothing to train on: no sample, or one that a batch norm cannot look at
        bound, layout = worker.bound, worker.setup.layout
        bound.load(start)
        bound.mode(training=True)
        keys = ("dropout", purpose, task.round, task.client, task.occurrence)
        bound.draw_from(random_streams.torch_stream(worker.setup.seed, *keys))
        names = layout.trainable if train is None else train & layout.trainable
        cache = self.plan_cache(purpose, names, epochs, steps)
        identity: Callable[[Gradient], Gradient] = lambda g: g
        stepper = LocalSteps(
            worker, loss or worker.plain_loss, gradient or identity, names, task.lr if lr is None else lr
        )
        self.take_steps(stepper, purpose, self.batches(purpose, epochs=epochs, steps=steps, cache=cache), cache)
        return bound.snapshot()

    def scan(
        self,
        function: Callable[[Any, Batch], Any],
        carry: Any,
        purpose: str,
        *,
        epochs: int = 1,
        share: float = 1.0,
    ) -> Any:
        """Fold over batches; see :class:`fedstrata.core.piece.Tools`."""
        fold = Fold(function, carry)
        if len(self.index):
            self.take_steps(fold, purpose, self.batches(purpose, epochs=epochs, share=share))
        return fold.carry

    # ---- stretches of steps and what they cost

    def plan_cache(self, purpose: str, names: Names, epochs: int | None, steps: int | None) -> ActivationCache | None:
        """Return the cache for one stretch of steps; a reason against it is noted."""
        n, setup = len(self.index), self.worker.setup
        rereads = setup.local_steps(n, epochs=epochs, steps=steps) > setup.local_steps(n, epochs=1)
        cache = self.worker.cache.plan(names, n, rereads=rereads)
        if isinstance(cache, ActivationCache):
            return cache
        self.note_cache(purpose, cache)
        return None

    def note_cache(self, purpose: str, use: NotCached | None) -> None:
        """Count a stretch of training by whether activations were cached, or why not."""
        if use is not None and not use.reason:
            return
        label = f"{purpose}: cached" if use is None else f"{purpose}: not cached, {use.reason}"
        self.cache_use[label] = self.cache_use.get(label, 0) + 1

    def count(self, key: str, samples: int) -> None:
        """Count samples that went through local steps."""
        self.cost_by_phase[key] = self.cost_by_phase.get(key, 0) + samples

    def take_steps(
        self, stepper: LocalSteps | Fold, purpose: str, batches: Iterable[Batch], cache: ActivationCache | None = None
    ) -> None:
        """Run one stretch of steps and count what it costs."""
        bound = self.worker.bound
        outer, bound.cache = bound.cache, cache
        try:
            if self.probe:
                self._measure(stepper, purpose, batches, cache)
            else:
                run_steps(stepper, batches)
        finally:
            bound.cache = outer
        if cache is None:
            self.count(purpose, stepper.samples)
            return
        phase = purpose.partition(":")[0]
        unused = NotCached("the method looks at other points or at parts of batches")
        self.note_cache(phase, None if cache.used else unused)
        if cache.used:
            self.count(f"{purpose}:cached", stepper.samples)
            self.count(f"prefix {purpose}", cache.count)
        else:
            self.count(purpose, stepper.samples)

    def _measure(
        self, stepper: LocalSteps | Fold, purpose: str, batches: Iterable[Batch], cache: ActivationCache | None
    ) -> None:
        """Measure FLOPs a sample; with a cache, of the prefix and the rest too."""
        inner, costs = FlopCounter(), self.worker.costs
        if cache is not None:
            cache.watch = lambda: inner
        with FlopCounter() as counter:
            run_steps(stepper, batches)
        total, samples = counter.get_total_flops(), max(stepper.samples, 1)
        costs[purpose] = total / samples
        if cache is not None and cache.used:
            prefix = inner.get_total_flops()
            costs[f"{purpose}:cached"] = (total - prefix) / samples
            costs[f"prefix {purpose}"] = prefix / max(cache.count, 1)


def phase_key(phase: str, names: Names) -> str:
    """Name a stretch of training in the ledger: the phase and which parameters moved."""
    return f"{phase}:{random_streams.key(0, 'names', *sorted(names)):016x}"
