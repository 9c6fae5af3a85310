"""Compute the loss of a finished run's model on fixed samples, as a function of its flat parameter vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedstrata.common.errors import ConfigError
from fedstrata.common.random_streams import stream
from fedstrata.core.layout import Names
from fedstrata.core.params import EvalMode, Model, Params
from fedstrata.core.piece import draw_without_replacement, require
from fedstrata.data.io.samples import Samples
from fedstrata.inference.finished_run import Finished
from fedstrata.studies.active_groups import used_parameters

Split: TypeAlias = Literal["train", "test"]
CLIENTS = 1000  # most clients whose training samples are drawn from; of a million, clients are drawn first


class Surface:
    """The mean loss of a run's model over fixed samples, at any values of its parameters.

    Norms and dropout are in evaluation mode. Everything is computed in the precision of ``dtype``, regardless of the
    run's; sums over batches are in float64.

    Args:
        run: whose network.
        x: [N, *shape] samples.
        y: [N] their targets.
        batch: samples of one pass; it changes the result only where norms use batch statistics.
        dtype: float32 or float64.
    Attributes:
        centre: [P] the served values.
        statistics: those of the served model's norms.
        eval_mode: how norms are evaluated: "eval", or "batch_stats" for a run with ``bn=batch``.
    """

    def __init__(self, run: Finished, x: Tensor, y: Tensor, batch: int, dtype: torch.dtype = torch.float32) -> None:
        self.worker, self.layout, self.dtype = run.engine.worker, run.engine.parts.setup.layout, dtype
        self.eval_mode: EvalMode = "batch_stats" if run.engine.evaluator.batch_statistics else "eval"
        self.centre = run.served.flat.to(dtype)
        self.statistics = run.served.statistics.new(run.served.statistics.flat.to(dtype))
        if not bool(self.centre.isfinite().all()):
            raise ConfigError(
                f"{run.folder}: the model is not finite: its training diverged, and the loss around it is undefined."
            )
        self.samples = len(y)
        whole = x.to(dtype) if x.is_floating_point() else x
        target = y.to(dtype) if y.is_floating_point() else y
        self.batches = [(whole[part], target[part]) for part in cut(torch.arange(len(y)), batch)]

    def loss(self, flat: Tensor, statistics: Params | None = None) -> float:
        """Compute the mean loss at these values, [P]; it may be infinite or NaN."""
        return self.score(flat, statistics)[0]

    def score(self, flat: Tensor, statistics: Params | None = None) -> tuple[float, float]:
        """Compute (mean loss, accuracy) at these values; of a regression (mean squared error, its root).

        Args:
            flat: [P] values.
            statistics: of norms; default: the served ones.
        """
        total, right = 0.0, 0
        p = self._model(Params(flat, self.layout.spec, eval_mode=self.eval_mode), statistics)
        for x, y in self.batches:
            with torch.no_grad():
                output = self._output(p, x)
                total += float(self.worker.net.loss(output, y).sum(dtype=torch.float64))
                right += (
                    0 if y.is_floating_point() else int(((output.argmax(-1) == y) & output.isfinite().all(-1)).sum())
                )
        mean = total / self.samples
        return mean, math.sqrt(mean) if self.batches[0][1].is_floating_point() else right / self.samples

    def gradient(self) -> Tensor:
        """Compute [P] the gradient of the mean loss at the centre."""
        names = self.layout.spec.names
        total = torch.zeros(self.layout.spec.total, dtype=torch.float64)
        for x, y in self.batches:
            with torch.enable_grad():
                leaves, p = self._leaves(names)
                value = self.worker.net.loss(self._output(p, x), y).sum() / self.samples
                parts = torch.autograd.grad(value, leaves, materialize_grads=True)
            total += flattened(parts)
        return total.to(self.dtype)

    def hessian_product(self, names: Sequence[str]) -> Callable[[Tensor], Tensor]:
        """Return the map v -> H v, both [Q]: the Hessian of the mean loss at the centre, over the named parameters.

        It differentiates the product of the gradient and v; layers before the first of these parameters need no
        backward pass.

        Args:
            names: of parameters, in the order of the layout; Q numbers in all.
        """
        sizes = [self.layout.entries[name].shape for name in names]

        def product(v: Tensor) -> Tensor:
            parts = [
                part.view(shape) for part, shape in zip(torch.split(v, [s.numel() for s in sizes]), sizes, strict=True)
            ]
            total = torch.zeros(len(v), dtype=torch.float64)
            for x, y in self.batches:
                with (
                    torch.enable_grad(),
                    sdpa_kernel(SDPBackend.MATH),
                ):  # fused attention cannot be differentiated twice
                    leaves, p = self._leaves(names)
                    value = self.worker.net.loss(self._output(p, x), y).sum() / self.samples
                    grads = torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True)
                    along = torch.stack([(g * part).sum() for g, part in zip(grads, parts, strict=True)]).sum()
                    if along.requires_grad:  # a loss that is linear in these parameters has no second derivative
                        total += flattened(torch.autograd.grad(along, leaves, materialize_grads=True))
            return total.to(self.dtype)

        return product

    def used(self) -> Names:
        """Return the names of the parameters that the loss depends on; a network that grows has unused layers."""
        return used_parameters(self.worker, self._model(Params(self.centre, self.layout.spec)), self.batches[0][0])

    def _leaves(self, names: Sequence[str]) -> tuple[list[Tensor], Model]:
        views = dict(Params(self.centre, self.layout.spec).views)
        leaves = [views[name].detach().requires_grad_() for name in names]
        views |= dict(zip(names, leaves, strict=True))
        return leaves, self._model(Params(self.centre, self.layout.spec, eval_mode=self.eval_mode, views=views))

    def _model(self, params: Params, statistics: Params | None = None) -> Model:
        return Model(params, self.statistics if statistics is None else statistics)

    def _output(self, p: Model, x: Tensor) -> Tensor:
        # the cache is keyed by the parameter vector, and here only views change; it would also hold every batch's graph
        self.worker.features.clear()
        return self.worker.net(p, x)


def surfaces(
    runs: Mapping[str, Finished], split: Split, samples: int, batch: int, seed: int, dtype: torch.dtype = torch.float32
) -> dict[str, Surface]:
    """Build the surface of each run, all over the same samples.

    Args:
        runs: by label.
        split: "train": what clients of the first run train on; "test": the server's test set.
        samples: how many, at most.
        batch: of one pass.
        seed: of the draw.
        dtype: precision.
    Raises:
        ConfigError: runs on different data, no samples, or a model that has diverged.
    """
    first = next(iter(runs.values()))
    for label, run in runs.items():
        same_data(next(iter(runs)), first, label, run)
    index = positions(first, split, samples, seed)
    result = {}
    for label, run in runs.items():
        pool = pool_of(run, split)
        result[label] = Surface(run, pool.take(index), pool.y[index], batch, dtype)
    return result


def positions(run: Finished, split: Split, samples: int, seed: int) -> Tensor:
    """Draw [n] int64 ascending positions of up to ``samples`` samples, uniformly and without replacement.

    Training samples are those that clients train on, without held-out clients, validation and client tests: their mean
    loss is the objective of clients weighted by samples. Of more than 1000 clients, 1000 are drawn first.

    Raises:
        ConfigError: there are fewer than two samples.
    """
    rng = stream(seed, "study/samples", split)
    if split == "test":
        pool = torch.arange(len(pool_of(run, split)))
    else:
        eligible = run.engine.parts.setup.eligible
        chosen = (
            list(eligible)
            if len(eligible) <= CLIENTS
            else [eligible[i] for i in sorted(draw_without_replacement(rng, len(eligible), CLIENTS))]
        )
        pool = torch.cat([run.federation.training(client) for client in chosen])
    if len(pool) < 2:
        raise ConfigError(f"{run.folder}: there are {len(pool)} {split} samples; at least 2 are needed.")
    return pool[torch.tensor(draw_without_replacement(rng, len(pool), min(samples, len(pool))))].sort().values


def pool_of(run: Finished, split: Split) -> Samples:
    """Return the samples that positions refer to.

    Raises:
        ConfigError: no test set.
    """
    if split == "train":
        return run.federation.train
    if run.federation.test is None:
        raise ConfigError(f"{run.folder}: the run has no test set on the server; use training samples: split=train.")
    return run.federation.test


def same_data(one: str, first: Finished, other: str, run: Finished) -> None:
    """Refuse runs whose losses are of different samples.

    Raises:
        ConfigError: different data sets, tasks or targets.
    """
    a, b = first.federation, run.federation
    if a.name != b.name or a.task != b.task or not torch.equal(a.train.y, b.train.y):
        raise ConfigError(
            f"{one} has the data {a.name} and {other} has {b.name}; losses are compared on the same samples. Study runs"
            " on the same data."
        )


def cut(index: Tensor, batch: int) -> list[Tensor]:
    """Split positions into batches; a last batch of one joins the previous one, as norms need two samples."""
    parts = list(torch.split(index, min(batch, len(index))))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def flattened(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors to one vector."""
    return torch.cat([part.detach().reshape(-1) for part in parts])


def finite_or_none(value: float) -> float | None:
    """Return the number, or None if it is not finite, as JSON requires."""
    return value if math.isfinite(value) else None


def check_samples(name: str, samples: int, batch: int) -> None:
    """Refuse invalid numbers of samples."""
    require(samples >= 2, f"{name}.samples", samples, "a number of samples, at least 2")
    require(batch >= 2, f"{name}.batch", batch, "a number of samples in one pass, at least 2")
