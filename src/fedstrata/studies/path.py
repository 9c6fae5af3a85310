"""The straight segment between the models that two runs ended in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.client.worker import Worker
from fedstrata.common.errors import ConfigError
from fedstrata.core.params import Params
from fedstrata.core.piece import require
from fedstrata.diagnostics.panel import Panel
from fedstrata.inference.finished_run import Finished
from fedstrata.studies.base import Outcome, Study
from fedstrata.studies.surface import Split, Surface, known, sampled, surfaces


@dataclass(frozen=True)
class Path(Study):
    """Loss and accuracy along the straight segment between two runs' served models, with the height of the barrier.

    The barrier is the largest excess of the loss over the straight line between the two ends' losses: 0 where the two
    lie in one basin without a hill between them. Of more than two runs, each is paired with the first. Running
    statistics of norms fit the model that they were counted at, and no average of two models: they are counted anew at
    every point, the ends included, on as many training samples as the loss is taken over, with norms as in training and
    no dropout; "mix" averages them like parameters, so that the ends are exactly the served models. The numbers of
    samples and points are INFERRED.

    Args:
        samples: that the loss is taken over, the same at every point.
        split: "train", from what clients of the first run train on, or "test".
        points: along the segment, both ends included.
        statistics: of batch norms: "recompute" or "mix"; without effect where no norm keeps running ones.
        batch: samples of one pass.
        seed: of the draw of samples.
    Source: the barrier is def. 2.1 of Entezari et al. 2022, "The Role of Permutation Invariance in Linear Mode
        Connectivity of Neural Networks".
    Statistics counted anew at averaged weights: Izmailov et al. 2018 (SWA), sec. 3.2. Why the average of two models
    needs it: Jordan et al. 2023 (REPAIR), in whose words the variance of activations collapses there.
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
        " the loss rises above the straight line between its ends: 0 says that both lie in one basin, high that a hill"
        " lies between them. Entezari et al. 2022."
    )
    least: ClassVar[int] = 2

    def __post_init__(self) -> None:
        sampled("path", self.samples, self.batch)
        require(
            3 <= self.points <= 10_000, "path.points", self.points, "a number of points with both ends, from 3 to 10000"
        )

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """The segment from the first run to each other one."""
        laid = surfaces(runs, self.split, self.samples, self.batch, self.seed)
        first, *others = laid
        for other in others:
            _alike(first, laid[first], other, laid[other])
        counted = _counts(laid[first]) and self.statistics == "recompute"
        drawn = (
            [
                x
                for x, _ in next(
                    iter(surfaces({first: runs[first]}, "train", self.samples, self.batch, self.seed).values())
                ).batches
            ]
            if counted
            else []
        )
        pairs = {f"{first} to {other}": self._segment(laid[first], laid[other], drawn) for other in others}
        told = [f"{label}: {note}" for label, run in runs.items() for note in (*run.notes_for(None), *run.notes)]
        if counted:
            told.append(
                "running statistics of norms were counted anew at every point, so the ends differ from the served"
                " models (see served in outcome.json)"
            )
        served = {
            label: dict(zip(("loss", "score"), map(known, surface.scored(surface.centre)), strict=True))
            for label, surface in laid.items()
        }
        task = runs[first].federation.task.kind
        numbers = {
            "samples": laid[first].samples,
            "score": "accuracy" if task == "classification" else "root mean squared error",
            "statistics": "recompute" if counted else "mix" if _counts(laid[first]) else "none",
            "served": served,
            "pairs": pairs,
        }
        return Outcome(numbers, self._panels(pairs, str(numbers["score"])), notes=told)

    def _segment(self, a: Surface, b: Surface, drawn: Sequence[Tensor]) -> dict[str, Any]:
        places = [k / (self.points - 1) for k in range(self.points)]
        scored = [self._at(a, b, t, drawn) for t in places]
        losses, scores = [known(loss) for loss, _ in scored], [known(score) for _, score in scored]
        barrier, where = barrier_of(places, losses)
        return {
            "at": places,
            "loss": losses,
            "score": scores,
            "barrier": barrier,
            "barrier_at": where,
            "distance": float((b.centre - a.centre).norm()),
        }

    def _at(self, a: Surface, b: Surface, t: float, drawn: Sequence[Tensor]) -> tuple[float, float]:
        flat = (1 - t) * a.centre + t * b.centre
        assert a.statistics is not None
        assert b.statistics is not None
        mixed = Params((1 - t) * a.statistics.flat + t * b.statistics.flat, a.statistics.spec)
        return a.scored(flat, recounted(a.kit, Params(flat, a.layout.spec, buffers=mixed), drawn) if drawn else mixed)

    def _panels(self, pairs: Mapping[str, Mapping[str, Any]], score: str) -> list[Panel]:
        x = next(iter(pairs.values()))["at"]
        where = "share of the second model"
        losses, scores = ({name: pair[key] for name, pair in pairs.items()} for key in ("loss", "score"))
        heights = [pair["barrier"] for pair in pairs.values()]
        return [
            Panel("Loss along the path", self.text, "lines", x, losses, x_name=where, y_name="loss"),
            Panel(f"{score.capitalize()} along the path", self.text, "lines", x, scores, x_name=where, y_name=score),
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


def recounted(kit: Worker, params: Params, drawn: Sequence[Tensor]) -> Params:
    """Running statistics of norms at these values: the plain mean, over batches, of what each batch shows, layers in
    front looking at the same batch.

    Args:
        kit: its module is bound to the values.
        params: with statistics of any value.
        drawn: [B, *shape] each, of one size but for the last.
    Source: Izmailov et al. 2018, sec. 3.2, as torch.optim.swa_utils.update_bn does it.
    """
    bound = kit.bound
    bound.load(params)
    bound.mode(training=False, batch_statistics=True)
    with torch.no_grad():
        for place, x in enumerate(drawn, 1):
            for norm in bound.norms:
                norm.momentum = 1 / place  # a running mean with this weight is the plain mean
            kit.memo.clear()
            kit.net(bound.params, x)
    kit.memo.clear()
    bound.mode(training=False)
    return Params(bound.buffers.flat.clone(), bound.buffers.spec)


def _counts(surface: Surface) -> bool:
    """Whether norms keep running statistics that evaluation reads."""
    return surface.still == "eval" and any(norm.running_mean is not None for norm in surface.kit.bound.norms)


def _alike(one: str, a: Surface, other: str, b: Surface) -> None:
    """Refuse models that have no segment between them.

    Raises:
        ConfigError: other tensors, other samples, or norms that look at the batch in one run alone.
    """
    if a.layout != b.layout:
        raise ConfigError(
            f"{one} and {other} have models of different layouts; a straight line joins two models with the same"
            " tensors."
        )
    if _functions(a) != _functions(b):
        raise ConfigError(
            f"{one} and {other} have networks that compute differently with the same tensors; no model lies on the line"
            " between them."
        )
    if any(not torch.equal(_setting(a, name), _setting(b, name)) for name in sorted(a.layout.settings)):
        raise ConfigError(
            f"{one} and {other} ended in different stages of a network that grows; take runs that ended in the same"
            " one."
        )
    if a.still != b.still:
        raise ConfigError(
            f"the norms of one of {one} and {other} look at the batch (bn=batch), those of the other do not; they are"
            " two functions."
        )
    if any(not torch.equal(x, z) for (x, _), (z, _) in zip(a.batches, b.batches, strict=True)):
        raise ConfigError(
            f"{one} and {other} scale their samples differently; no model on the line between them could read both."
        )


def _setting(surface: Surface, name: str) -> Tensor:
    return Params(surface.centre, surface.layout.spec)[name]


def _functions(surface: Surface) -> list[str]:
    """What a network computes with, beside its tensors: its layers but for dropout, which stands still, and pieces that
    change it.
    """
    bound, method = surface.kit.bound, surface.kit.method
    modules = (*bound.body.named_modules(), *bound.head.named_modules())
    layers = [
        f"{name}: {leaf}" for name, leaf in modules if not any(leaf.children()) and "Dropout" not in type(leaf).__name__
    ]
    return layers + [str(piece) for piece in method.named.values() if type(piece).overrides("model")]


def barrier_of(places: Sequence[float], losses: Sequence[float | None]) -> tuple[float | None, float | None]:
    """(height, place) of the largest excess over the line between the ends; None where a loss is not finite.

    >>> barrier_of([0.0, 0.5, 1.0], [1.0, 3.0, 2.0])
    (1.5, 0.5)
    """
    whole = [loss for loss in losses if loss is not None]
    if len(whole) < len(losses):
        return None, None
    excess = [loss - ((1 - t) * whole[0] + t * whole[-1]) for t, loss in zip(places, whole, strict=True)]
    excess[0] = excess[-1] = 0.0  # by definition; rounding says otherwise
    height = max(excess)
    assert math.isfinite(height)
    return height, places[excess.index(height)]
