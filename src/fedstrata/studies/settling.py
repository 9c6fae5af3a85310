"""Which layers settle first: how far each layer group is from where it ends, in its weights and in what it puts out,
federated against pooled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.backends.loop import Loop
from fedstrata.core.layout import Layout, Names
from fedstrata.core.piece import require
from fedstrata.diagnostics.panel import Panel
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.evaluation import BATCH
from fedstrata.inference.finished_run import Finished
from fedstrata.studies.active_groups import groups_of, left_out, used
from fedstrata.studies.base import Outcome, Study
from fedstrata.studies.local_step_lengths import by_group
from fedstrata.studies.retraining import Counted, pooled, trained
from fedstrata.studies.similarity import kernels, similarities

By = dict[str, list[float | None]]
WHAT: Mapping[str, tuple[str, str]] = {
    "distance": ("Distance to the final weights", "share of the way, 0 is the end"),
    "similarity": ("Similarity of outputs to the final ones", "linear CKA, 1 is the end"),
}


@dataclass(frozen=True)
class Settling(Study):
    """When each layer group comes near its end: relative distance of its weights, and linear CKA of its output, to
    those of the last round.

    ``samples`` evenly spaced test samples are looked at, at most ``looks`` evenly spaced rounds, the start and the end
    among them. A group has settled with the first of these rounds from which on its distance is at most ``within``, or
    its CKA at least 1 - ``within``. ``against=pooled`` trains the same model centrally too, on all clients' samples, as
    many a round as the participants read together. Layer groups that the network does not use at its end are left out.
    The last round does not count: every group is at its end there.

    INFERRED: ``samples``, ``looks`` and ``within``.

    Source: linear CKA from Kornblith et al. 2019.
    """

    title: ClassVar[str] = "Settling of layers"
    text: ClassVar[str] = (
        "By layer group and round: |w_t - w_T| / |w_0 - w_T|, the share of the way to the final weights that is left"
        " (it starts at 1, and exceeds it where weights have moved away), and linear CKA (Kornblith et al. 2019)"
        " between the group's output on fixed test samples then and at the end, in [0, 1]. Small distances and a CKA"
        " near 1 mean that the group has settled. Pooled: the same model trained centrally on all clients' samples, as"
        " many a round as all participants read together."
    )
    samples: int = 200
    looks: int = 20
    within: float = 0.1
    against: Literal["pooled", "none"] = "pooled"

    def __post_init__(self) -> None:
        require(
            2 <= self.samples <= BATCH,
            "settling.samples",
            self.samples,
            f"how many test samples are looked at, from 2 to {BATCH}",
        )
        require(
            self.looks >= 2,
            "settling.looks",
            self.looks,
            "how many rounds are looked at, at least 2: the start and the end",
        )
        require(
            0 < self.within < 1,
            "settling.within",
            self.within,
            "the share of the way that may be left at a settled group, in (0, 1)",
        )

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        numbers: dict[str, Any] = {}
        panels: list[Panel] = []
        notes: list[str] = []
        rounds = {label: run.rounds for label, run in runs.items()}
        for label, run in runs.items():
            found, told = self._one(run, rounds[label])
            numbers[label] = found
            kinds = {"": found} | ({", pooled": found["pooled"]} if "pooled" in found else {})
            notes += [f"{label}: {said}" for said in told] + [
                f"{label}{kind}: {said}" for kind, one in kinds.items() for said in _late(one)
            ]
            panels += [
                Panel(
                    f"{title}: {label}{kind}",
                    self.text,
                    "heat",
                    one["rounds"],
                    one[what],
                    x_name="rounds done",
                    y_name=unit,
                )
                for what, (title, unit) in WHAT.items()
                for kind, one in kinds.items()
            ]
            panels.append(_table(label, self.within, kinds))
        return Outcome(numbers, panels, notes=notes)

    def _one(self, run: Finished, rounds: int) -> tuple[dict[str, Any], list[str]]:
        parts = run.engine.parts
        counted = Counted(Loop(parts.make_worker))
        track = self._track(parts, rounds, counted)
        found = self._said(track, parts.setup.layout)
        notes = left_out(parts.setup.layout, found["settled"])
        if not torch.equal(track.flats[-1], run.engine.server.model.flat):
            notes.append(
                "trained again in one thread it ends at other last bits than the run did; distances are to the end of"
                " this second training."
            )
        if self.against == "pooled":
            central = pooled(parts, counted.read)
            other = self._track(central, rounds, None)
            if parts.setup.layout.integers:
                notes.append(
                    "the run grew its network in stages; the pooled training is of the whole network from the start."
                )
            found["pooled"] = self._said(other, parts.setup.layout) | {
                "samples": len(central.federation.training(0)),
                "read": counted.read,
            }
        return found, notes

    def _track(self, parts: RunComponents, rounds: int, executor: Counted | None) -> Track:
        looks = min(self.looks, rounds + 1)
        marks = {round(k * rounds / (looks - 1)) for k in range(looks)}
        samples = parts.federation.train if parts.federation.test is None else parts.federation.test
        x = samples.take(torch.linspace(0, len(samples) - 1, min(self.samples, len(samples))).round().long())
        track = Track([], [], [], frozenset())
        for done, engine in enumerate(trained(parts, rounds, executor)):
            if done in marks:
                params = engine.serving.model()
                track.rounds.append(done)
                track.flats.append(params.flat.detach().clone())
                track.kernels.append(
                    kernels(engine.worker, params, x, batch_statistics=engine.evaluator.batch_statistics)
                )
                track.used = used(engine.worker, params, x)
        return track

    def _said(self, track: Track, layout: Layout) -> dict[str, Any]:
        shown = groups_of(layout, track.used)
        distance, similarity = (
            {g: of[g] for g in shown} for of in (distances(track.flats, layout), similarities(track.kernels))
        )
        settled = {
            group: {
                "distance": settled_by(
                    track.rounds, [None if v is None else v <= self.within for v in distance[group]]
                ),
                "similarity": settled_by(
                    track.rounds, [None if v is None else v >= 1 - self.within for v in similarity[group]]
                ),
            }
            for group in shown
        }
        return {"rounds": track.rounds, "distance": distance, "similarity": similarity, "settled": settled}


@dataclass
class Track:
    """A training, looked at.

    Attributes:
        rounds: how many were done at each look.
        flats: [P] the server's parameters.
        kernels: of the outputs of layer groups, see :func:`kernels`.
        used: parameters that the network computes with at the last look.
    """

    rounds: list[int]
    flats: list[Tensor]
    kernels: list[Mapping[str, Tensor | None]]
    used: Names


def distances(flats: Sequence[Tensor], layout: Layout) -> By:
    """Group -> |w_t - w_T| / |w_0 - w_T| at every moment; None for a group that ends where it began.

    Args:
        flats: [P] parameters, from the first to the last moment.
        layout: the groups.
    """
    left = torch.stack([by_group(flat - flats[-1], layout.spec, layout) for flat in flats]).sqrt()  # [moments, groups]
    return {
        group: [float(v / left[0, g]) if float(left[0, g]) > 0 else None for v in left[:, g]]
        for g, group in enumerate(layout.groups)
    }


def settled_by(rounds: Sequence[int], near: Sequence[bool | None]) -> int | None:
    """The first of these rounds from which on it is near.

    None where that is only the last one, at which all are near, or nothing is known.
    """
    found = None
    for done, here in zip(reversed(rounds), reversed(near), strict=True):
        if not here:
            break
        found = done
    return None if found == rounds[-1] else found


def _late(one: Mapping[str, Any]) -> list[str]:
    """Groups that move and have not settled before the end, by either measure."""
    late = {
        what: [g for g, found in one["settled"].items() if found[what] is None and one[what][g][0] is not None]
        for what in WHAT
    }
    return [f"not settled before the end by {what}: {', '.join(groups)}." for what, groups in late.items() if groups]


def _table(label: str, within: float, kinds: Mapping[str, Mapping[str, Any]]) -> Panel:
    heads = [f"{what}{kind}" for kind in kinds for what in WHAT]
    groups = dict.fromkeys(group for one in kinds.values() for group in one["settled"])
    rows = {
        group: [one["settled"].get(group, {}).get(what) for one in kinds.values() for what in WHAT] for group in groups
    }
    said = f"{Settling.text} Settled: within {within:g} from then on; no number: not before the end."
    return Panel(f"Rounds until settled: {label}", said, "table", heads, rows, x_name="")
