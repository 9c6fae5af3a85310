"""How sharp the minimum is that a run ended in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.core.piece import require
from fedstrata.diagnostics.panel import Panel
from fedstrata.inference.finished_run import Finished
from fedstrata.studies.active_groups import groups_of, left_out
from fedstrata.studies.base import Outcome, Study
from fedstrata.studies.directions import Vectors, filterwise, gaussian
from fedstrata.studies.spectrum import Eigen, extremes
from fedstrata.studies.surface import Split, Surface, known, sampled, surfaces

Found = Mapping[str, Mapping[str, Any]]
"""Label of a run -> its numbers."""


@dataclass(frozen=True)
class Sharpness(Study):
    """Largest Hessian eigenvalue of the served model's loss, whole and by layer group, and the loss nearby.

    The largest eigenvalue by magnitude comes from power iteration; where it is negative, a second iteration on the
    shifted Hessian gives the algebraically largest one. Of a layer group, the same of its diagonal block of the
    Hessian. Nearby losses: over random directions that are as long as the model in each filter, times each radius;
    after an ascent step under the same bound, in which each filter moves along its own gradient; and after an ascent
    step of length rho in all, as SAM takes it. Norms stand still at the served statistics. The numbers of samples,
    iterations and directions, the tolerance and the radii are INFERRED: the FedAvg CNN takes about half a minute of one
    core.

    Args:
        samples: that the loss is taken over, the same for all runs.
        split: "train", from what clients train on, or "test".
        iterations: most Hessian-vector products of one power iteration.
        tolerance: relative change of the Rayleigh quotient at which it has settled, with a residual below the root of
            it.
        groups: "each" layer group has a value of its own; "whole" looks at the whole model alone.
        radii: lengths of the steps, as shares of each filter's length.
        directions: random ones.
        rho: length of SAM's ascent step.
        vectors: "still" leaves biases and norms' parameters in place in random and filter-wise steps; "scaled" takes
            each as one filter.
        precision: that the network is computed in.
        batch: samples of one pass.
        seed: of samples, start vectors and directions.
    Source: Foret et al. 2021 (SAM), eq. 2, for the ascent step, with rho 0.05 as there; Li et al. 2018 for the scale of
        filters; Yao et al. 2020
    (PyHessian) for eigenvalues of networks.
    """

    samples: int = 512
    split: Split = "train"
    iterations: int = 20
    tolerance: float = 1e-3
    groups: Literal["each", "whole"] = "each"
    radii: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    directions: int = 5
    rho: float = 0.05
    vectors: Vectors = "still"
    precision: Literal["float32", "float64"] = "float32"
    batch: int = 128
    seed: int = 0

    title: ClassVar[str] = "Sharpness"
    text: ClassVar[str] = (
        "Largest eigenvalue of the Hessian of the served model's loss, whole and by layer group: high is a sharp"
        " minimum, where a small step along one axis costs much. And the loss after steps within a share of each"
        " filter's length: flat where it hardly rises. Foret et al. 2021; Li et al. 2018."
    )

    def __post_init__(self) -> None:
        sampled("sharpness", self.samples, self.batch)
        require(self.iterations >= 2, "sharpness.iterations", self.iterations, "a number of products, at least 2")
        require(0 < self.tolerance < 1, "sharpness.tolerance", self.tolerance, "a relative change, in (0, 1)")
        require(
            1 <= self.directions <= 10_000,
            "sharpness.directions",
            self.directions,
            "a number of random directions, from 1 to 10000",
        )
        require(self.rho > 0, "sharpness.rho", self.rho, "a length, above 0")
        fits = bool(self.radii) and all(a < b for a, b in zip((0.0, *self.radii), self.radii, strict=False))
        require(
            fits,
            "sharpness.radii",
            list(self.radii),
            "shares of a filter's length, above 0 and ascending, as in [0.01, 0.1]",
        )

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """The numbers of each run, side by side."""
        laid = surfaces(runs, self.split, self.samples, self.batch, self.seed, getattr(torch, self.precision))
        found = {label: self._one(surface) for label, surface in laid.items()}
        panels = [self._table(found), self._whole(found), *self._groups(found), *self._nearby(found)]
        told = [f"{label}: {note}" for label, run in runs.items() for note in (*run.notes_for(None), *run.notes)]
        if self.groups == "each":
            told += [
                f"{label}: {said}"
                for label, one in found.items()
                for said in left_out(laid[label].layout, one["groups"])
            ]
        numbers = {"samples": next(iter(laid.values())).samples, "runs": found}
        return Outcome(numbers, panels, notes=(*told, *self._unsettled(found)))

    def _one(self, surface: Surface) -> dict[str, Any]:
        layout = surface.layout
        slope = surface.slope()
        steepest = slope / slope.norm() if float(slope.norm()) > 0 else slope
        near = surface.loss(surface.centre)
        after = surface.loss(surface.centre + self.rho * steepest)
        whole = self._extremes(surface, layout.spec.names, "all")
        each = groups_of(layout, surface.used()) if self.groups == "each" else []
        return {
            "loss": known(near),
            "slope": known(float(slope.double().norm())),
            "largest_by_magnitude": _plain(whole[0]),
            "largest": _plain(whole[1]),
            "groups": {name: _plain(self._extremes(surface, layout.groups[name].names, name)[1]) for name in each},
            "random": [self._random(surface, place) for place in range(self.directions)],
            "filterwise_ascent": self._along(surface, filterwise(slope, surface.centre, layout, self.vectors)),
            "ascent": {"rho": self.rho, "loss": known(after), "rise": known(after - near)},
        }

    def _extremes(self, surface: Surface, names: Sequence[str], key: str) -> tuple[Eigen, Eigen]:
        product = surface.bend(names)
        size = sum(surface.layout.entries[name].shape.numel() for name in names)
        return extremes(
            product,
            gaussian(size, self.seed, f"study/sharpness/start/{key}", 0, surface.dtype),
            self.tolerance,
            self.iterations,
        )

    def _random(self, surface: Surface, place: int) -> list[float | None]:
        drawn = gaussian(len(surface.centre), self.seed, "study/sharpness/direction", place, surface.dtype)
        return self._along(surface, filterwise(drawn, surface.centre, surface.layout, self.vectors))

    def _along(self, surface: Surface, direction: Tensor) -> list[float | None]:
        return [known(surface.loss(surface.centre + radius * direction)) for radius in self.radii]

    # ---- what is shown
    # ------------------------------------------------------------------------------------------------------------------

    def _table(self, found: Found) -> Panel:
        columns = ("loss", "largest eigenvalue", "largest by magnitude", f"rise after an ascent of {self.rho:g}")
        rows = {
            label: [one["loss"], one["largest"]["value"], one["largest_by_magnitude"]["value"], one["ascent"]["rise"]]
            for label, one in found.items()
        }
        return Panel("Sharpness of the served model", self.text, "table", columns, rows, x_name="run")

    def _whole(self, found: Found) -> Panel:
        series = {"largest": [one["largest"]["value"] for one in found.values()]}
        if any(one["largest"] != one["largest_by_magnitude"] for one in found.values()):
            series["largest by magnitude"] = [one["largest_by_magnitude"]["value"] for one in found.values()]
        return Panel(
            "Largest Hessian eigenvalue", self.text, "bars", list(found), series, x_name="run", y_name="eigenvalue"
        )

    def _groups(self, found: Found) -> list[Panel]:
        names = list(dict.fromkeys(name for one in found.values() for name in one["groups"]))
        series = {
            label: [one["groups"][name]["value"] if name in one["groups"] else None for name in names]
            for label, one in found.items()
        }
        text = (
            "Largest eigenvalue of each layer group's diagonal block of the Hessian: high where a small step of this"
            " layer alone costs much."
        )
        panel = Panel(
            "Largest Hessian eigenvalue by layer group",
            text,
            "bars",
            names,
            series,
            x_name="layer group",
            y_name="eigenvalue",
        )
        return [panel] if names else []

    def _nearby(self, found: Found) -> list[Panel]:
        x = [0.0, *self.radii]
        drawn = {
            label: [[one["loss"]] * self.directions, *zip(*one["random"], strict=True)] for label, one in found.items()
        }  # [radii + 1, n]
        mean = {label: [_mean(at) for at in values] for label, values in drawn.items()}
        spread = (
            {label: [_deviation(at) for at in values] for label, values in drawn.items()} if self.directions > 1 else {}
        )
        worst = {label: [None if None in at else max(at) for at in values] for label, values in drawn.items()}
        ascent = {label: [one["loss"], *one["filterwise_ascent"]] for label, one in found.items()}
        text = "Loss after a step of this share of each filter's length; flat where it hardly rises."
        count = f"{self.directions} random direction{'' if self.directions == 1 else 's'}"
        rows = {
            f"Loss along {count}, mean": mean,
            f"Loss along {count}, largest": worst,
            "Loss after an ascent step": ascent,
        }
        where = "share of each filter's length"
        bands: tuple[Mapping[str, Sequence[float | None]], ...] = (spread, {}, {})
        return [
            Panel(title, text, "lines", x, series, band, x_name=where, y_name="loss")
            for (title, series), band in zip(rows.items(), bands, strict=True)
        ]

    def _unsettled(self, found: Found) -> list[str]:
        """What must be said of eigenvalues that had not settled."""
        told = []
        for label, one in found.items():
            second = (
                {}
                if one["largest"] == one["largest_by_magnitude"]
                else {"its largest above the negative one": one["largest"]}
            )
            looked = {"the whole model": one["largest_by_magnitude"], **second, **one["groups"]}
            short = [name for name, eigen in looked.items() if not eigen["converged"]]
            if short:
                worst = max((looked[name]["residual"] or 0.0) for name in short)
                told.append(
                    f"{label}: power iteration had not settled after {self.iterations} products for {', '.join(short)}"
                    f" (residual up to {worst:.2g} of the spectral radius); give more iterations, or a larger"
                    " tolerance."
                )
        return told


def _plain(eigen: Eigen) -> dict[str, Any]:
    return {key: known(value) if isinstance(value, float) else value for key, value in asdict(eigen).items()}


def _mean(values: Sequence[float | None]) -> float | None:
    whole = [v for v in values if v is not None]
    return math.fsum(whole) / len(whole) if len(whole) == len(values) else None


def _deviation(values: Sequence[float | None]) -> float | None:
    """Standard deviation with n - 1."""
    mean = _mean(values)
    return (
        None
        if mean is None
        else math.sqrt(math.fsum((v - mean) ** 2 for v in values if v is not None) / (len(values) - 1))
    )
