"""Find which layers settle first: the distance of weights and outputs to the final ones, federated and pooled."""

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
from fedstrata.studies.active_groups import groups_of, left_out, used_parameters
from fedstrata.studies.base import Outcome, Study
from fedstrata.studies.local_step_lengths import squares_by_group
from fedstrata.studies.retraining import SampleCounter, pooled, retrain
from fedstrata.studies.similarity import output_kernels, similarities

By = dict[str, list[float | None]]
WHAT: Mapping[str, tuple[str, str]] = {
    "distance": ("Distance to the final weights", "share of the way, 0 is the end"),
    "similarity": ("Similarity of outputs to the final ones", "linear CKA, 1 is the end"),
}


@dataclass(frozen=True)
class Settling(Study):
    """Find when each layer group approaches its final state, by distance of weights and linear CKA of outputs.

    ``samples`` evenly spaced test samples are used, at up to ``looks`` evenly spaced rounds including the start and the
    end. A group has settled at the first of these rounds from which its distance is at most ``within``, or its CKA at
    least 1 - ``within``. ``against=pooled`` also trains the same model centrally, on all clients' samples, with as many
    samples in each round as the participants read together. Layer groups that the final network does not use are left
    out. The last round does not count, as every group equals its final state there.

    INFERRED: ``samples``, ``looks`` and ``within``.

    Source: linear CKA from Kornblith et al. 2019.
    """

    title: ClassVar[str] = "Settling of layers"
    text: ClassVar[str] = (
        "By layer group and round: |w_t - w_T| / |w_0 - w_T|, the remaining share of the way to the final weights"
        " (it starts at 1, and exceeds 1 if weights move away), and linear CKA (Kornblith et al. 2019) between the"
        " group's output on fixed test samples in that round and at the end, in [0, 1]. Small distances and a CKA near"
        " 1 mean that the group has settled. Pooled: the same model trained centrally on all clients' samples, as many"
        " in each round as all participants read together."
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
            f"the number of test samples, from 2 to {BATCH}",
        )
        require(
            self.looks >= 2,
            "settling.looks",
            self.looks,
            "the number of rounds that are compared, at least 2: the start and the end",
        )
        require(
            0 < self.within < 1,
            "settling.within",
            self.within,
            "the remaining share of the way at a settled group, in (0, 1)",
        )

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        numbers: dict[str, Any] = {}
        panels: list[Panel] = []
        notes: list[str] = []
        rounds = {label: run.rounds for label, run in runs.items()}
        for label, run in runs.items():
            result, run_notes = self._study_run(run, rounds[label])
            numbers[label] = result
            kinds = {"": result} | ({", pooled": result["pooled"]} if "pooled" in result else {})
            notes += [f"{label}: {note}" for note in run_notes]
            notes += [f"{label}{kind}: {note}" for kind, one in kinds.items() for note in _unsettled(one)]
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

    def _study_run(self, run: Finished, rounds: int) -> tuple[dict[str, Any], list[str]]:
        parts = run.engine.parts
        counter = SampleCounter(Loop(parts.make_worker))
        track = self._track(parts, rounds, counter)
        result = self._numbers(track, parts.setup.layout)
        notes = left_out(parts.setup.layout, result["settled"])
        if not torch.equal(track.flats[-1], run.engine.server.model.flat):
            notes.append(
                "retrained in one thread, the final model differs from the run's in its last bits; distances are to the"
                " end of the retraining."
            )
        if self.against == "pooled":
            central = pooled(parts, counter.read)
            central_track = self._track(central, rounds, None)
            if parts.setup.layout.integers:
                notes.append(
                    "the run grew its network in stages; the pooled training uses the whole network from the start."
                )
            result["pooled"] = self._numbers(central_track, parts.setup.layout) | {
                "samples": len(central.federation.training(0)),
                "read": counter.read,
            }
        return result, notes

    def _track(self, parts: RunComponents, rounds: int, executor: SampleCounter | None) -> Track:
        count = min(self.looks, rounds + 1)
        marks = {round(k * rounds / (count - 1)) for k in range(count)}
        samples = parts.federation.train if parts.federation.test is None else parts.federation.test
        x = samples.take(torch.linspace(0, len(samples) - 1, min(self.samples, len(samples))).round().long())
        track = Track([], [], [], frozenset())
        for done, engine in enumerate(retrain(parts, rounds, executor)):
            if done in marks:
                params = engine.serving.model()
                track.rounds.append(done)
                track.flats.append(params.flat.detach().clone())
                track.kernels.append(
                    output_kernels(engine.worker, params, x, batch_statistics=engine.evaluator.batch_statistics)
                )
                track.used = used_parameters(engine.worker, params, x)
        return track

    def _numbers(self, track: Track, layout: Layout) -> dict[str, Any]:
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
    """What is compared of a training, at some of its rounds.

    Attributes:
        rounds: numbers of completed rounds.
        flats: [P] the server's parameters.
        kernels: of the outputs of layer groups, see :func:`fedstrata.studies.similarity.output_kernels`.
        used: parameters that the last network uses.
    """

    rounds: list[int]
    flats: list[Tensor]
    kernels: list[Mapping[str, Tensor | None]]
    used: Names


def distances(flats: Sequence[Tensor], layout: Layout) -> By:
    """Compute group -> |w_t - w_T| / |w_0 - w_T| at every moment; None for a group that ends where it began.

    Args:
        flats: [P] parameters, from the first to the last moment.
        layout: the groups.
    """
    left = torch.stack(
        [squares_by_group(flat - flats[-1], layout.spec, layout) for flat in flats]
    ).sqrt()  # [moments, groups]
    return {
        group: [float(v / left[0, g]) if float(left[0, g]) > 0 else None for v in left[:, g]]
        for g, group in enumerate(layout.groups)
    }


def settled_by(rounds: Sequence[int], near: Sequence[bool | None]) -> int | None:
    """Return the first of these rounds from which the group is near its final state.

    None if that is only the last round, where all groups are near, or nothing is known.
    """
    first = None
    for done, is_near in zip(reversed(rounds), reversed(near), strict=True):
        if not is_near:
            break
        first = done
    return None if first == rounds[-1] else first


def _unsettled(one: Mapping[str, Any]) -> list[str]:
    """Return notes on groups that move and have not settled before the end, by either measure."""
    late = {
        what: [g for g, settled in one["settled"].items() if settled[what] is None and one[what][g][0] is not None]
        for what in WHAT
    }
    return [f"not settled before the end by {what}: {', '.join(groups)}." for what, groups in late.items() if groups]


def _table(label: str, within: float, kinds: Mapping[str, Mapping[str, Any]]) -> Panel:
    heads = [f"{what}{kind}" for kind in kinds for what in WHAT]
    groups = dict.fromkeys(group for one in kinds.values() for group in one["settled"])
    rows = {
        group: [one["settled"].get(group, {}).get(what) for one in kinds.values() for what in WHAT] for group in groups
    }
    text = f"{Settling.text} Settled: within {within:g} from that round; no number: not before the end."
    return Panel(f"Rounds until settled: {label}", text, "table", heads, rows, x_name="")
