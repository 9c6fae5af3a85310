"""Test Assumption 3 of FedPart by Monte Carlo: whether masks of layer groups change gradient variance alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedstrata.client.worker import Worker
from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Layout
from fedstrata.core.network import Batch
from fedstrata.core.params import Model
from fedstrata.core.piece import require
from fedstrata.diagnostics.panel import Panel
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.server import Server, context
from fedstrata.inference.finished_run import Finished
from fedstrata.methods.fedpart import FedPart
from fedstrata.methods.parts.cycle import Calendar
from fedstrata.studies.active_groups import groups_of, left_out, used_parameters
from fedstrata.studies.base import Outcome, Study
from fedstrata.studies.retraining import pooled_federation, retrain

ENDS = ("min", "median", "max")


@dataclass(frozen=True)
class Masks(Study):
    """Estimate the constant k of FedPart's Assumption 3: gradient variance of each layer group over the model's.

    ``samples`` mini-batches of the run's size are drawn from all clients' training samples at one model; the published
    check has 10,000. ``at``: the numbers of completed rounds at which k is estimated; none means the start, the end of
    the first warm-up and of the first cycle if the method is FedPart, and the end of the run.

    INFERRED: the estimator, since the paper states no definition of k. With g a batch's gradient, m its mean over
    batches and S_a the mask of group a, v_a = E|S_a (g - m)|^2 / numel(a), v = E|g - m|^2 / numel, k_a = v_a / v; the
    share is M E|S_a (g - m)|^2 / E|g - m|^2 for M groups.

    INFERRED: ``samples`` by default, and batches of the union of clients without replacement inside a batch.

    Source: Wang et al. 2024 (FedPart), Assumption 3, and the authors' reply to reviewers.
    """

    title: ClassVar[str] = "Masks and gradient variance"
    text: ClassVar[str] = (
        "For each layer group, variance of mini-batch gradients for each number of the group, over that of the whole"
        " model: k = 1 everywhere is the best case of Assumption 3 of Wang et al. 2024. The share does not divide by"
        " sizes: the group's part of the variance times the number of groups. Estimated at one model by Monte Carlo;"
        " neither has a unit."
    )
    samples: int = 1000
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(self.samples >= 2, "masks.samples", self.samples, "mini-batches, at least 2 (published: 10,000)")
        for done in self.at:
            require(done >= 0, "masks.at", done, "a number of completed rounds, at least 0")

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        numbers: dict[str, Any] = {}
        panels: list[Panel] = []
        notes: list[str] = []
        moments_of = {label: self._moments(label, run.engine.parts, run.rounds) for label, run in runs.items()}
        for label, run in runs.items():
            parts, rounds, moments = run.engine.parts, run.rounds, moments_of[label]
            variances = {}
            for done, engine in enumerate(retrain(parts, rounds)):
                if done in moments:
                    moment = moments[done]
                    variances[moment] = estimate(engine.worker, engine.serving.model(), batches(parts, self.samples))
                    notes += [
                        f"{label}, {moment}: {note}" for note in left_out(parts.setup.layout, variances[moment].groups)
                    ]
            numbers[label] = {"samples": self.samples, "batch": parts.setup.local.batch} | {
                name: _summary(one) for name, one in variances.items()
            }
            panels += _panels(label, variances)
        return Outcome(numbers, panels, notes=notes)

    def _moments(self, label: str, parts: RunComponents, rounds: int) -> dict[int, str]:
        """Return completed rounds -> what that moment is."""
        too_late = [done for done in self.at if done > rounds]
        if too_late:
            raise ConfigError(f"masks.at is {too_late[0]}, but {label} has {rounds} rounds.")
        if self.at:
            return {done: f"after round {done}" if done else "start" for done in sorted(set(self.at))}
        moments = {0: "start"}
        for piece in parts.method.pieces:
            if isinstance(piece, FedPart):
                calendar = calendar_of(piece, parts)
                moments |= {calendar.first: "after warm-up", calendar.rounds(1): "after one cycle"}
        moments = {0: "start"} | {done: name for done, name in sorted(moments.items()) if 0 < done <= rounds}
        return moments | ({} if rounds in moments else {rounds: "end"})


def calendar_of(piece: FedPart, parts: RunComponents) -> Calendar:
    """Return which group trains when, over the groups that the preceding pieces leave in training."""
    rules, server = parts.rules, Server.start(parts.method, parts.setup)
    plan = rules.base
    for name, before in takewhile(lambda item: item[1] is not piece, parts.method.planners.items()):
        plan = before.plan(plan, context(server, rules, before, f"plan.{name}"))
    return piece.calendar(len(piece.blocks(plan.train, parts.setup)))


@dataclass(frozen=True)
class Variances:
    """Variances of the gradients of mini-batches.

    Attributes:
        groups: layer groups that the network uses, shallow to deep; sizes: numbers in each.
        sums: [groups] float64, E|S_a (g - m)|^2.
    """

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    sums: Tensor

    @property
    def k(self) -> dict[str, float | None]:
        """Return, by layer group, the variance for each number of the group over that of the model.

        None if gradients do not vary.
        """
        whole = float(self.sums.sum()) / sum(self.sizes)
        return {
            g: float(v) / n / whole if whole > 0 else None
            for g, n, v in zip(self.groups, self.sizes, self.sums, strict=True)
        }

    @property
    def share(self) -> dict[str, float | None]:
        """Return, by layer group, its part of the whole variance, times the number of groups."""
        whole = float(self.sums.sum())
        return {
            g: len(self.groups) * float(v) / whole if whole > 0 else None
            for g, v in zip(self.groups, self.sums, strict=True)
        }


class Welford:
    """Accumulates the mean of vectors, and by layer group the sum of squared deviations; no vector is kept.

    Source: Welford 1962: M_n = M_{n-1} + <x_n - m_{n-1}, x_n - m_n>, here over each group's numbers.
    """

    def __init__(self, layout: Layout) -> None:
        self.count = 0
        self.mean = torch.zeros(layout.spec.total, dtype=torch.float64)
        self.stretches = [layout.spec.runs(group.names) for group in layout.groups.values()]
        self.sums = torch.zeros(len(self.stretches), dtype=torch.float64)

    def add(self, vector: Tensor) -> None:
        """Add a vector [P]."""
        self.count += 1
        before = vector.double() - self.mean
        self.mean += before / self.count
        product = before * (vector - self.mean)
        for group, stretches in enumerate(self.stretches):
            for a, b in stretches:
                self.sums[group] += product[a:b].sum()

    def variances(self) -> Tensor:
        """Return [groups] the mean over vectors of the squared deviation from their mean, E|S_a (g - m)|^2."""
        return self.sums / max(self.count, 1)


def estimate(worker: Worker, model: Model, drawn: Iterator[Batch]) -> Variances:
    """Estimate variances of the gradients of the plain local loss, of the layer groups that the network uses.

    The network is in training mode.

    Args:
        worker: its vector holds ``model`` afterwards, and its statistics have changed.
        model: norms use the batch, as in training.
        drawn: mini-batches.
    """
    layout, bound = worker.setup.layout, worker.bound
    bound.train_only(layout.parameters)
    bound.load(model)
    bound.mode(training=True)
    moments = Welford(layout)
    shown: list[str] = []
    for i, batch in enumerate(drawn):
        shown = shown or groups_of(layout, used_parameters(worker, model, batch.x))
        bound.draw_from(random_streams.torch_stream(worker.setup.seed, "masks dropout", i))
        worker.features.clear()
        grads, whole = bound.gradients(worker.plain_loss(bound.model, batch), bound.spec.names)
        assert whole is None, "the plain loss has no terms on the whole vector"
        moments.add(torch.cat([grad.reshape(-1) for grad in grads]))
    at = [layout.names().index(name) for name in shown]
    return Variances(tuple(shown), tuple(layout.groups[name].numel for name in shown), moments.variances()[at])


def batches(parts: RunComponents, count: int) -> Iterator[Batch]:
    """Draw ``count`` mini-batches of the union of clients' training samples, augmented as in training.

    Every call returns the same ones.
    """
    data, setup = parts.federation, parts.setup
    index = pooled_federation(data).training(0)
    rng = random_streams.stream(setup.seed, "masks batches")
    size = min(setup.local.batch, len(index))
    for i in range(count):
        chosen = index[torch.from_numpy(rng.choice(len(index), size, replace=False))]
        x = data.train.take(chosen)
        if data.augment is not None:
            key = random_streams.key(setup.seed, "masks augment", i)
            x = data.augment(x, torch.from_numpy(random_streams.uniforms(key, chosen.numpy(), data.augment.draws)))
        yield Batch(x, data.train.y[chosen])


def ends(values: Sequence[float | None]) -> dict[str, float | None]:
    """Compute minimum, median and maximum of the finite values."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if not finite:
        return dict.fromkeys(ENDS)
    return dict(zip(ENDS, (min(finite), statistics.median(finite), max(finite)), strict=True))


def _summary(one: Variances) -> dict[str, Any]:
    return {
        "k": one.k,
        "share": one.share,
        "k over groups": ends(list(one.k.values())),
        "share over groups": ends(list(one.share.values())),
        "variance": float(one.sums.sum()),
    }


def _panels(label: str, variances: Mapping[str, Variances]) -> list[Panel]:
    """Build maps by group, and a table over groups."""
    groups = list(dict.fromkeys(g for one in variances.values() for g in one.groups))
    kinds = {"k": [one.k for one in variances.values()], "share": [one.share for one in variances.values()]}
    titles = {"k": "k by layer group", "share": "Share of the variance by layer group"}
    panels = [
        Panel(
            f"{titles[kind]}: {label}",
            Masks.text,
            "heat",
            list(variances),
            {g: [v.get(g) for v in values] for g in groups},
            x_name="",
            y_name=kind,
        )
        for kind, values in kinds.items()
    ]
    rows = {
        f"{kind}, {end}": [ends(list(v.values()))[end] for v in values]
        for kind, values in kinds.items()
        for end in ENDS
    }
    return [
        *panels,
        Panel(f"k and share over layer groups: {label}", Masks.text, "table", list(variances), rows, x_name=""),
    ]
