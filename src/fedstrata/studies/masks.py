"""Assumption 3 of FedPart: whether masks of single layer groups change the variability of gradients alike, estimated by
Monte Carlo.
"""

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
from fedstrata.core.params import Params
from fedstrata.core.piece import require
from fedstrata.diagnostics.panel import Panel
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.server import Server, base_plan
from fedstrata.inference.finished_run import Finished
from fedstrata.methods.fedpart import FedPart
from fedstrata.methods.parts.cycle import Calendar
from fedstrata.studies.active_groups import groups_of, left_out, used
from fedstrata.studies.base import Outcome, Study
from fedstrata.studies.retraining import trained, union

ENDS = ("min", "median", "max")


@dataclass(frozen=True)
class Masks(Study):
    """The constant k of FedPart's Assumption 3 by layer group: variance of a gradient's numbers inside the group over
    that inside the whole model.

    ``samples`` mini-batches of the run's size are drawn from all clients' training samples at one model; the published
    check has 10,000. ``at``: how many rounds are done when it is looked at; none stands for the start, the end of the
    first warm-up and of the first cycle where the method is FedPart, and the end of the run.

    INFERRED: the estimator, since the paper states no definition of k. With g a batch's gradient, m its mean over
        batches and S_a the mask of group
    a, v_a = E|S_a (g - m)|^2 / numel(a), v = E|g - m|^2 / numel, k_a = v_a / v; the share is M E|S_a (g - m)|^2 / E|g -
    m|^2 for M groups.

    INFERRED: ``samples`` by default, and batches of the union of clients without replacement inside a batch.

    Source: Wang et al. 2024 (FedPart), Assumption 3, and the authors' reply to reviewers.
    """

    title: ClassVar[str] = "Masks and gradient variance"
    text: ClassVar[str] = (
        "For each layer group, variance of mini-batch gradients a number of the group, over that a number of the whole"
        " model: k = 1 everywhere would be Assumption 3 of Wang et al. 2024 at its best. The share does not divide by"
        " sizes: the group's part of the variance times the number of groups. Estimated at one model by Monte Carlo;"
        " neither has a unit."
    )
    samples: int = 1000
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(self.samples >= 2, "masks.samples", self.samples, "mini-batches, at least 2 (published: 10,000)")
        for done in self.at:
            require(done >= 0, "masks.at", done, "how many rounds are done, at least 0")

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        numbers: dict[str, Any] = {}
        panels: list[Panel] = []
        notes: list[str] = []
        looked = {label: self._moments(label, run.engine.parts, run.rounds) for label, run in runs.items()}
        for label, run in runs.items():
            parts, rounds, moments = run.engine.parts, run.rounds, looked[label]
            found = {}
            for done, engine in enumerate(trained(parts, rounds)):
                if done in moments:
                    found[moments[done]] = estimate(engine.worker, engine.serving.model(), batches(parts, self.samples))
                    told = left_out(parts.setup.layout, found[moments[done]].groups)
                    notes += [f"{label}, {moments[done]}: {said}" for said in told]
            numbers[label] = {"samples": self.samples, "batch": parts.setup.local.batch} | {
                name: _summed(one) for name, one in found.items()
            }
            panels += _panels(label, found)
        return Outcome(numbers, panels, notes=notes)

    def _moments(self, label: str, parts: RunComponents, rounds: int) -> dict[int, str]:
        """Rounds done, and what that is."""
        late = [done for done in self.at if done > rounds]
        if late:
            raise ConfigError(f"masks.at is {late[0]}, but {label} has {rounds} rounds.")
        if self.at:
            return {done: f"after round {done}" if done else "start" for done in sorted(set(self.at))}
        found = {0: "start"}
        for piece in parts.method.pieces:
            if isinstance(piece, FedPart):
                calendar = calendar_of(piece, parts)
                found |= {calendar.first: "after warm-up", calendar.rounds(1): "after one cycle"}
        found = {0: "start"} | {done: name for done, name in sorted(found.items()) if 0 < done <= rounds}
        return found | ({} if rounds in found else {rounds: "end"})


def calendar_of(piece: FedPart, parts: RunComponents) -> Calendar:
    """When which group trains, over those that the pieces in front of it leave in training."""
    slots, plan = Server.start(parts.method, parts.setup).slots, base_plan(parts.setup.layout, parts.config.bn)
    for name, before in takewhile(lambda item: item[1] is not piece, parts.method.named.items()):
        plan = before.plan(plan, slots[name], None, 0, parts.setup)
    return piece.calendar(len(piece.blocks(plan.train, parts.setup)))


@dataclass(frozen=True)
class Variances:
    """What the gradients of mini-batches said.

    Attributes:
        groups: layer groups that the network computes with, shallow to deep; sizes: numbers in each.
        sums: [groups] float64, E|S_a (g - m)|^2.
    """

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    sums: Tensor

    @property
    def k(self) -> dict[str, float | None]:
        """By layer group: variance a number of the group over variance a number of the model.

        None where gradients do not vary at all.
        """
        whole = float(self.sums.sum()) / sum(self.sizes)
        return {
            g: float(v) / n / whole if whole > 0 else None
            for g, n, v in zip(self.groups, self.sizes, self.sums, strict=True)
        }

    @property
    def share(self) -> dict[str, float | None]:
        """By layer group: its part of the whole variance, times the number of groups."""
        whole = float(self.sums.sum())
        return {
            g: len(self.groups) * float(v) / whole if whole > 0 else None
            for g, v in zip(self.groups, self.sums, strict=True)
        }


class Welford:
    """Mean of vectors, and by layer group the sum of squared deviations from it; no vector is kept.

    Source: Welford 1962: M_n = M_{n-1} + <x_n - m_{n-1}, x_n - m_n>, here over each group's numbers.
    """

    def __init__(self, layout: Layout) -> None:
        self.count = 0
        self.mean = torch.zeros(layout.spec.total, dtype=torch.float64)
        self.stretches = [layout.spec.runs(group.names) for group in layout.groups.values()]
        self.sums = torch.zeros(len(self.stretches), dtype=torch.float64)

    def add(self, vector: Tensor) -> None:
        """One more vector [P]."""
        self.count += 1
        before = vector.double() - self.mean
        self.mean += before / self.count
        product = before * (vector - self.mean)
        for place, stretches in enumerate(self.stretches):
            for a, b in stretches:
                self.sums[place] += product[a:b].sum()

    def variances(self) -> Tensor:
        """[groups] mean over vectors of the squared deviation from their mean, E|S_a (g - m)|^2."""
        return self.sums / max(self.count, 1)


def estimate(kit: Worker, params: Params, drawn: Iterator[Batch]) -> Variances:
    """Variances of the gradients of the plain local loss at a model, in training mode, of the layer groups that the
    network computes with there.

    Args:
        kit: a worker; its vector holds ``params`` afterwards, and its statistics have moved.
        params: the model; norms look at the batch, as in training.
        drawn: mini-batches.
    """
    layout, bound = kit.setup.layout, kit.bound
    bound.train_only(layout.parameters)
    bound.load(params)
    bound.mode(training=True)
    seen = Welford(layout)
    shown: list[str] = []
    for place, batch in enumerate(drawn):
        shown = shown or groups_of(layout, used(kit, params, batch.x))
        bound.draw_from(random_streams.torch_stream(kit.setup.seed, "masks dropout", place))
        kit.features.clear()
        slopes, whole = bound.gradients(kit.plain_loss(bound.model, batch), bound.spec.names)
        assert whole is None, "the plain loss has no terms on the whole vector"
        seen.add(torch.cat([slope.reshape(-1) for slope in slopes]))
    at = [layout.names().index(name) for name in shown]
    return Variances(tuple(shown), tuple(layout.groups[name].numel for name in shown), seen.variances()[at])


def batches(parts: RunComponents, count: int) -> Iterator[Batch]:
    """That many mini-batches of the union of clients' training samples, augmented as in training.

    The same at every call.
    """
    data, setup = parts.federation, parts.setup
    index = union(data).training(0)
    rng = random_streams.stream(setup.seed, "masks batches")
    size = min(setup.local.batch, len(index))
    for place in range(count):
        chosen = index[torch.from_numpy(rng.choice(len(index), size, replace=False))]
        x = data.train.take(chosen)
        if data.augment is not None:
            key = random_streams.key(setup.seed, "masks augment", place)
            x = data.augment(x, torch.from_numpy(random_streams.uniforms(key, chosen.numpy(), data.augment.draws)))
        yield Batch(x, data.train.y[chosen])


def ends(values: Sequence[float | None]) -> dict[str, float | None]:
    """Minimum, median and maximum of what is known."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    return (
        dict(zip(ENDS, (min(known), statistics.median(known), max(known)), strict=True))
        if known
        else dict.fromkeys(ENDS)
    )


def _summed(one: Variances) -> dict[str, Any]:
    return {
        "k": one.k,
        "share": one.share,
        "k over groups": ends(list(one.k.values())),
        "share over groups": ends(list(one.share.values())),
        "variance": float(one.sums.sum()),
    }


def _panels(label: str, found: Mapping[str, Variances]) -> list[Panel]:
    """By group as maps, and over groups as a table."""
    groups = list(dict.fromkeys(g for one in found.values() for g in one.groups))
    kinds = {"k": [one.k for one in found.values()], "share": [one.share for one in found.values()]}
    titles = {"k": "k by layer group", "share": "Share of the variance by layer group"}
    panels = [
        Panel(
            f"{titles[kind]}: {label}",
            Masks.text,
            "heat",
            list(found),
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
        Panel(f"k and share over layer groups: {label}", Masks.text, "table", list(found), rows, x_name=""),
    ]
