"""Measure the loss along the straight segment between the final models of two runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.client.worker import Worker
from fedstrata.common.errors import ConfigError
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import require
from fedstrata.diagnostics.panel import Panel
from fedstrata.inference.finished_run import Finished
from fedstrata.studies.base import Outcome, Study
from fedstrata.studies.surface import Split, Surface, check_samples, finite_or_none, surfaces


@dataclass(frozen=True)
class Path(Study):
    """Compute loss and accuracy along the straight segment between two runs' served models, and the barrier.

    The barrier is the largest excess of the loss over the straight line between the losses of both ends: 0 where both
    lie in one basin. Of more than two runs, each is paired with the first. Running statistics of norms fit the model
    that they were estimated for, not an average of two models. They are therefore recomputed at every point, including
    the ends, on as many training samples as the loss uses, with norms as in training and no dropout; "mix" averages
    them like parameters, which makes the ends exactly the served models. The numbers of samples and points are
    INFERRED.

    Args:
        samples: of the loss, the same at every point.
        split: "train", from what clients of the first run train on, or "test".
        points: along the segment, including both ends.
        statistics: of batch norms: "recompute" or "mix"; no effect if no norm keeps running statistics.
        batch: samples of one pass.
        seed: of the draw of samples.
    Source: the barrier is def. 2.1 of Entezari et al. 2022, "The Role of Permutation Invariance in Linear Mode
    Connectivity of Neural Networks". Statistics recomputed at averaged weights: Izmailov et al. 2018 (SWA), sec. 3.2.
    Why the average of two models needs it: Jordan et al. 2023 (REPAIR), who call it variance collapse.
    """

    samples: int = 1000
    split: Split = "train"
    points: int = 21
    statistics: Literal["recompute", "mix"] = "recompute"
    batch: int = 128
    seed: int = 0

    title: ClassVar[str] = "Path between models"
    text: ClassVar[str] = (
        "Loss and accuracy of the models on the straight line between two runs' served models. The barrier is how far"
        " the loss rises above the straight line between its ends: 0 means that both lie in one basin, high that they"
        " do not. Entezari et al. 2022."
    )
    least: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_samples("path", self.samples, self.batch)
        require(
            3 <= self.points <= 10_000, "path.points", self.points, "a number of points with both ends, from 3 to 10000"
        )

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """Measure the segment from the first run to each other one."""
        laid = surfaces(runs, self.split, self.samples, self.batch, self.seed)
        first, *others = laid
        for other in others:
            check_comparable(first, laid[first], other, laid[other])
        recompute = _has_statistics(laid[first]) and self.statistics == "recompute"
        drawn: list[Tensor] = []
        if recompute:
            training = surfaces({first: runs[first]}, "train", self.samples, self.batch, self.seed)[first]
            drawn = [x for x, _ in training.batches]
        pairs = {f"{first} to {other}": self._segment(laid[first], laid[other], drawn) for other in others}
        notes = [f"{label}: {note}" for label, run in runs.items() for note in (*run.notes_for(None), *run.notes)]
        if recompute:
            notes.append(
                "running statistics of norms were recomputed at every point, so the ends differ from the served models"
                " (see served in outcome.json)"
            )
        served = {
            label: dict(zip(("loss", "score"), map(finite_or_none, surface.score(surface.centre)), strict=True))
            for label, surface in laid.items()
        }
        task = runs[first].federation.task
        numbers = {
            "samples": laid[first].samples,
            "score": "accuracy" if task.has_accuracy else "root mean squared error",
            "statistics": "recompute" if recompute else "mix" if _has_statistics(laid[first]) else "none",
            "served": served,
            "pairs": pairs,
        }
        return Outcome(numbers, self._panels(pairs, str(numbers["score"])), notes=notes)

    def _segment(self, a: Surface, b: Surface, drawn: Sequence[Tensor]) -> dict[str, Any]:
        positions = [k / (self.points - 1) for k in range(self.points)]
        pairs = [self._score(a, b, t, drawn) for t in positions]
        losses = [finite_or_none(loss) for loss, _ in pairs]
        scores = [finite_or_none(score) for _, score in pairs]
        barrier, barrier_at = barrier_of(positions, losses)
        return {
            "at": positions,
            "loss": losses,
            "score": scores,
            "barrier": barrier,
            "barrier_at": barrier_at,
            "distance": float((b.centre - a.centre).norm()),
        }

    def _score(self, a: Surface, b: Surface, t: float, drawn: Sequence[Tensor]) -> tuple[float, float]:
        flat = (1 - t) * a.centre + t * b.centre
        mixed = Params((1 - t) * a.statistics.flat + t * b.statistics.flat, a.statistics.spec)
        if not drawn:
            return a.score(flat, mixed)
        return a.score(flat, recompute_statistics(a.worker, Model(Params(flat, a.layout.spec), mixed), drawn))

    def _panels(self, pairs: Mapping[str, Mapping[str, Any]], score: str) -> list[Panel]:
        x = next(iter(pairs.values()))["at"]
        x_name = "share of the second model"
        losses, scores = ({name: pair[key] for name, pair in pairs.items()} for key in ("loss", "score"))
        heights = [pair["barrier"] for pair in pairs.values()]
        return [
            Panel("Loss along the path", self.text, "lines", x, losses, x_name=x_name, y_name="loss"),
            Panel(f"{score.capitalize()} along the path", self.text, "lines", x, scores, x_name=x_name, y_name=score),
            Panel(
                "Barrier",
                self.text,
                "bars",
                list(pairs),
                {"barrier": heights},
                x_name="",
                y_name="loss above the straight line",
            ),
        ]


def recompute_statistics(worker: Worker, model: Model, drawn: Sequence[Tensor]) -> Params:
    """Compute running statistics of norms at these values: the plain mean of the statistics of batches.

    Earlier layers normalise by the statistics of the same batch.

    Args:
        worker: its module is bound to the values.
        model: with statistics of any value.
        drawn: [B, *shape] each, of equal size except the last.
    Source: Izmailov et al. 2018, sec. 3.2, as in torch.optim.swa_utils.update_bn.
    """
    bound = worker.bound
    bound.load(model)
    bound.mode(training=False, batch_statistics=True)
    with torch.no_grad():
        for count, x in enumerate(drawn, 1):
            for norm in bound.norms:
                norm.momentum = 1 / count  # a running mean with this weight is the plain mean
            worker.features.clear()
            worker.net(bound.model, x)
    worker.features.clear()
    bound.mode(training=False)
    return bound.statistics.clone()


def _has_statistics(surface: Surface) -> bool:
    """Tell whether norms keep running statistics that evaluation reads."""
    return surface.eval_mode == "eval" and any(norm.running_mean is not None for norm in surface.worker.bound.norms)


def check_comparable(one: str, a: Surface, other: str, b: Surface) -> None:
    """Refuse models without a meaningful segment between them.

    Raises:
        ConfigError: different tensors or samples, or norms that use the batch in one run only.
    """
    if a.layout != b.layout:
        raise ConfigError(
            f"{one} and {other} have models of different layouts; a straight line joins two models with the same"
            " tensors."
        )
    if _functions(a) != _functions(b):
        raise ConfigError(
            f"{one} and {other} have networks that compute differently with the same tensors; a line between them has"
            " no meaning."
        )
    if any(not torch.equal(_integers(a, name), _integers(b, name)) for name in sorted(a.layout.integers)):
        raise ConfigError(
            f"{one} and {other} ended in different stages of a network that grows; take runs that ended in the same"
            " one."
        )
    if a.eval_mode != b.eval_mode:
        raise ConfigError(
            f"the norms of one of {one} and {other} use the batch (bn=batch), those of the other do not; these are"
            " different functions."
        )
    if any(not torch.equal(x, z) for (x, _), (z, _) in zip(a.batches, b.batches, strict=True)):
        raise ConfigError(
            f"{one} and {other} scale their samples differently; no model on the line between them could read both."
        )


def _integers(surface: Surface, name: str) -> Tensor:
    return Params(surface.centre, surface.layout.spec)[name]


def _functions(surface: Surface) -> list[str]:
    """List what a network computes with besides tensors: layers without dropout, and pieces that change it."""
    bound, method = surface.worker.bound, surface.worker.method
    modules = (*bound.body.named_modules(), *bound.head.named_modules())
    layers = [
        f"{name}: {leaf}" for name, leaf in modules if not any(leaf.children()) and "Dropout" not in type(leaf).__name__
    ]
    return layers + [str(piece) for piece in method.named.values() if type(piece).overrides("model")]


def barrier_of(positions: Sequence[float], losses: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Compute (height, position) of the largest excess over the line between the ends; None if a loss is not finite.

    >>> barrier_of([0.0, 0.5, 1.0], [1.0, 3.0, 2.0])
    (1.5, 0.5)
    """
    finite = [loss for loss in losses if loss is not None]
    if len(finite) < len(losses):
        return None, None
    excess = [loss - ((1 - t) * finite[0] + t * finite[-1]) for t, loss in zip(positions, finite, strict=True)]
    excess[0] = excess[-1] = 0.0  # by definition; rounding would differ
    height = max(excess)
    assert math.isfinite(height)
    return height, positions[excess.index(height)]
