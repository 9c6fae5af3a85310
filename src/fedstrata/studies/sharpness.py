"""Measure how sharp the final minimum of a run is."""

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
from fedstrata.studies.surface import Split, Surface, check_samples, finite_or_none, surfaces

Numbers = Mapping[str, Mapping[str, Any]]
"""Label of a run -> its numbers."""


@dataclass(frozen=True)
class Sharpness(Study):
    """Compute the largest Hessian eigenvalue of the served model's loss, whole and by layer group, and nearby losses.

    The largest eigenvalue by magnitude is from power iteration; if it is negative, a second iteration on the shifted
    Hessian gives the algebraically largest one. For a layer group, both are of its diagonal block of the Hessian.
    Nearby losses: along random filter-normalised directions, times each radius; after an ascent step under the same
    bound, in which each filter moves along its gradient; and after SAM's ascent step of total length rho. Norms use the
    served statistics. The numbers of samples, iterations and directions, the tolerance and the radii are INFERRED: the
    FedAvg CNN takes about half a minute of one core.

    Args:
        samples: of the loss, the same for all runs.
        split: "train", from what clients train on, or "test".
        iterations: most Hessian-vector products of one power iteration.
        tolerance: relative change of the Rayleigh quotient at convergence, with a residual below its square root.
        groups: "each" computes every layer group; "whole" only the whole model.
        radii: lengths of the steps, as shares of each filter's length.
        directions: number of random directions.
        rho: length of SAM's ascent step.
        vectors: "still" leaves biases and norms' parameters unchanged in random and filter-wise steps; "scaled" treats
            each as one filter.
        precision: of the computation.
        batch: samples of one pass.
        seed: of samples, start vectors and directions.
    Source: Foret et al. 2021 (SAM), eq. 2, for the ascent step, with rho 0.05 as there; Li et al. 2018 for the scale of
    filters; Yao et al. 2020 (PyHessian) for eigenvalues of networks.
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
        "Largest eigenvalue of the Hessian of the served model's loss, whole and by layer group: high means a"
        " sharp minimum, where a small step along one axis costs much. And the loss after steps within a share of each"
        " filter's length: flat if it hardly rises. Foret et al. 2021; Li et al. 2018."
    )

    def __post_init__(self) -> None:
        check_samples("sharpness", self.samples, self.batch)
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
        """Compute the numbers of each run."""
        laid = surfaces(runs, self.split, self.samples, self.batch, self.seed, getattr(torch, self.precision))
        computed = {label: self._compute(surface) for label, surface in laid.items()}
        panels = [self._table(computed), self._whole(computed), *self._groups(computed), *self._nearby(computed)]
        notes = [f"{label}: {note}" for label, run in runs.items() for note in (*run.notes_for(None), *run.notes)]
        if self.groups == "each":
            notes += [
                f"{label}: {note}"
                for label, one in computed.items()
                for note in left_out(laid[label].layout, one["groups"])
            ]
        numbers = {"samples": next(iter(laid.values())).samples, "runs": computed}
        return Outcome(numbers, panels, notes=(*notes, *self._unconverged(computed)))

    def _compute(self, surface: Surface) -> dict[str, Any]:
        layout = surface.layout
        grad = surface.gradient()
        steepest = grad / grad.norm() if float(grad.norm()) > 0 else grad
        loss = surface.loss(surface.centre)
        after = surface.loss(surface.centre + self.rho * steepest)
        whole = self._extremes(surface, layout.spec.names, "all")
        each = groups_of(layout, surface.used()) if self.groups == "each" else []
        return {
            "loss": finite_or_none(loss),
            "slope": finite_or_none(float(grad.double().norm())),
            "largest_by_magnitude": _as_json(whole[0]),
            "largest": _as_json(whole[1]),
            "groups": {name: _as_json(self._extremes(surface, layout.groups[name].names, name)[1]) for name in each},
            "random": [self._random(surface, i) for i in range(self.directions)],
            "filterwise_ascent": self._along(surface, filterwise(grad, surface.centre, layout, self.vectors)),
            "ascent": {"rho": self.rho, "loss": finite_or_none(after), "rise": finite_or_none(after - loss)},
        }

    def _extremes(self, surface: Surface, names: Sequence[str], key: str) -> tuple[Eigen, Eigen]:
        product = surface.hessian_product(names)
        size = sum(surface.layout.entries[name].shape.numel() for name in names)
        return extremes(
            product,
            gaussian(size, self.seed, f"study/sharpness/start/{key}", 0, surface.dtype),
            self.tolerance,
            self.iterations,
        )

    def _random(self, surface: Surface, index: int) -> list[float | None]:
        drawn = gaussian(len(surface.centre), self.seed, "study/sharpness/direction", index, surface.dtype)
        return self._along(surface, filterwise(drawn, surface.centre, surface.layout, self.vectors))

    def _along(self, surface: Surface, direction: Tensor) -> list[float | None]:
        return [finite_or_none(surface.loss(surface.centre + radius * direction)) for radius in self.radii]

    # ---- panels

    def _table(self, numbers: Numbers) -> Panel:
        columns = ("loss", "largest eigenvalue", "largest by magnitude", f"rise after an ascent of {self.rho:g}")
        rows = {
            label: [one["loss"], one["largest"]["value"], one["largest_by_magnitude"]["value"], one["ascent"]["rise"]]
            for label, one in numbers.items()
        }
        return Panel("Sharpness of the served model", self.text, "table", columns, rows, x_name="run")

    def _whole(self, numbers: Numbers) -> Panel:
        series = {"largest": [one["largest"]["value"] for one in numbers.values()]}
        if any(one["largest"] != one["largest_by_magnitude"] for one in numbers.values()):
            series["largest by magnitude"] = [one["largest_by_magnitude"]["value"] for one in numbers.values()]
        return Panel(
            "Largest Hessian eigenvalue", self.text, "bars", list(numbers), series, x_name="run", y_name="eigenvalue"
        )

    def _groups(self, numbers: Numbers) -> list[Panel]:
        names = list(dict.fromkeys(name for one in numbers.values() for name in one["groups"]))
        series = {
            label: [one["groups"][name]["value"] if name in one["groups"] else None for name in names]
            for label, one in numbers.items()
        }
        text = (
            "Largest eigenvalue of each layer group's diagonal block of the Hessian: high if a small step of this"
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

    def _nearby(self, numbers: Numbers) -> list[Panel]:
        x = [0.0, *self.radii]
        drawn = {
            label: [[one["loss"]] * self.directions, *zip(*one["random"], strict=True)]
            for label, one in numbers.items()
        }  # [radii + 1, n]
        mean = {label: [_mean(at) for at in values] for label, values in drawn.items()}
        spread = (
            {label: [_deviation(at) for at in values] for label, values in drawn.items()} if self.directions > 1 else {}
        )
        worst = {label: [None if None in at else max(at) for at in values] for label, values in drawn.items()}
        ascent = {label: [one["loss"], *one["filterwise_ascent"]] for label, one in numbers.items()}
        text = "Loss after a step of this share of each filter's length; flat if it hardly rises."
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

    def _unconverged(self, numbers: Numbers) -> list[str]:
        """Return notes on eigenvalues that have not converged."""
        notes = []
        for label, one in numbers.items():
            second = (
                {}
                if one["largest"] == one["largest_by_magnitude"]
                else {"its largest above the negative one": one["largest"]}
            )
            eigenvalues = {"the whole model": one["largest_by_magnitude"], **second, **one["groups"]}
            names = [name for name, eigen in eigenvalues.items() if not eigen["converged"]]
            if names:
                worst = max((eigenvalues[name]["residual"] or 0.0) for name in names)
                notes.append(
                    f"{label}: power iteration has not converged after {self.iterations} products for"
                    f" {', '.join(names)}"
                    f" (residual up to {worst:.2g} of the spectral radius); give more iterations, or a larger"
                    " tolerance."
                )
        return notes


def _as_json(eigen: Eigen) -> dict[str, Any]:
    return {key: finite_or_none(value) if isinstance(value, float) else value for key, value in asdict(eigen).items()}


def _mean(values: Sequence[float | None]) -> float | None:
    whole = [v for v in values if v is not None]
    return math.fsum(whole) / len(whole) if len(whole) == len(values) else None


def _deviation(values: Sequence[float | None]) -> float | None:
    """Compute the standard deviation with n - 1."""
    mean = _mean(values)
    return (
        None
        if mean is None
        else math.sqrt(math.fsum((v - mean) ** 2 for v in values if v is not None) / (len(values) - 1))
    )
