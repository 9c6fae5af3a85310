"""Map the loss around the final model of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedstrata.core.piece import require
from fedstrata.diagnostics.panel import Panel
from fedstrata.inference.finished_run import Finished
from fedstrata.report.page.data_table import DataTable, Head, number_cell, text_cell
from fedstrata.report.page.drawing import Picture
from fedstrata.report.page.text import loose, short
from fedstrata.report.page.theme import LIGHT
from fedstrata.studies.base import Outcome, Study
from fedstrata.studies.directions import Vectors, filterwise, gaussian
from fedstrata.studies.surface import Split, Surface, check_samples, finite_or_none, surfaces

LEVELS = 14  # level lines, evenly spaced in the logarithm of the loss
SIDE = 2.6  # inches of one map
Maps = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Landscape(Study):
    """Compute the loss on a plane through the served model, along two random filter-normalised directions.

    Both directions use the same Gaussian numbers in every run of equal layout, scaled to the filters of that run. This
    removes the scale of weights, which norms and ReLU make arbitrary, and makes maps comparable. All maps of a study
    have the same level lines. The numbers of samples and points are INFERRED: a map of the FedAvg CNN takes about half
    a minute of one core. The map's span, 1, is that of most of the paper's figures.

    Args:
        samples: of the loss, the same at every point and for all runs.
        split: "train", from what clients train on, or "test".
        points: along each side; an odd number, to include the model itself.
        span: from the model to each side of the map, in lengths of its filters.
        vectors: "still" leaves biases and norms' parameters unchanged, as in the paper's maps; "scaled" treats each as
            one filter.
        batch: samples of one pass.
        seed: of samples and directions.
    Source: Li et al. 2018, "Visualizing the Loss Landscape of Neural Nets", sec. 4; biases and norms as in the authors'
    code with ignore=biasbn.
    """

    samples: int = 256
    split: Split = "train"
    points: int = 15
    span: float = 1.0
    vectors: Vectors = "still"
    batch: int = 128
    seed: int = 0

    title: ClassVar[str] = "Loss landscape"
    text: ClassVar[str] = (
        "Loss around the served model, along two random directions, in lengths of the model's filters: distant level"
        " lines mean a flat minimum, dense ones a sharp one. Filter-normalised, so that models compare. Li et al. 2018."
    )

    def __post_init__(self) -> None:
        check_samples("landscape", self.samples, self.batch)
        fits = 3 <= self.points <= 999 and self.points % 2 == 1
        require(fits, "landscape.points", self.points, "an odd number of points on a side, from 3 to 999")
        require(self.span > 0, "landscape.span", self.span, "a length in those of the filters, above 0")

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """Draw a map of each run in one figure, and the profile along the first direction."""
        laid = surfaces(runs, self.split, self.samples, self.batch, self.seed)
        maps = {label: self._map(surface) for label, surface in laid.items()}
        at = self._offsets()
        profiles = {label: one["grid"][self.points // 2] for label, one in maps.items()}
        text = "Loss along the first random direction, through the served model at 0; flat where it hardly rises."
        panels = [Panel("Loss profile", text, "lines", at, profiles, x_name="lengths of the filters", y_name="loss")]
        panels += [self._table(label, one["grid"]) for label, one in maps.items()]
        notes = [f"{label}: {note}" for label, run in runs.items() for note in (*run.notes_for(None), *run.notes)]
        numbers = {"samples": next(iter(laid.values())).samples, "at": at, "runs": maps}
        return Outcome(numbers, panels, draw_maps(maps, at), notes=notes)

    def _offsets(self) -> list[float]:
        half = self.points // 2
        return [self.span * k / half for k in range(-half, half + 1)]

    def _map(self, surface: Surface) -> dict[str, Any]:
        """Compute losses: rows along the second direction, columns along the first."""
        x, y = self.directions(surface)
        grid = [
            [finite_or_none(surface.loss(surface.centre + a * x + b * y)) for a in self._offsets()]
            for b in self._offsets()
        ]
        values = [value for row in grid for value in row if value is not None]
        return {
            "loss": grid[self.points // 2][self.points // 2],
            "least": min(values, default=None),
            "most": max(values, default=None),
            "grid": grid,
        }

    def directions(self, surface: Surface) -> tuple[Any, Any]:
        """Draw the two directions of a model, each [P]."""
        drawn = (
            gaussian(len(surface.centre), self.seed, "study/landscape/direction", i, surface.dtype) for i in range(2)
        )
        x, y = (filterwise(one, surface.centre, surface.layout, self.vectors) for one in drawn)
        return x, y

    def _table(self, label: str, grid: Sequence[Sequence[float | None]]) -> Panel:
        at = self._offsets()
        rows = {f"{b:+.3g}": row for b, row in zip(at, grid, strict=True)}
        text = "Loss by the first direction (columns) and the second (rows), in lengths of the filters."
        return Panel(
            f"Loss landscape of {label}",
            text,
            "table",
            [f"{a:+.3g}" for a in at],
            rows,
            x_name="first direction",
            y_name="loss",
        )


def draw_maps(maps: Maps, at: Sequence[float]) -> list[Picture]:
    """Draw all maps in one figure with the same level lines; none where no loss is finite and above 0."""
    values = [value for one in maps.values() for row in one["grid"] for value in row if value is not None and value > 0]
    if not values:
        return []
    columns = min(3, len(maps))
    rows = -(-len(maps) // columns)
    heads = [Head("run", words=True), Head("loss"), Head("least"), Head("most")]
    lines = [
        [text_cell(short(label), label), *(number_cell(loose(one[key]), one[key]) for key in ("loss", "least", "most"))]
        for label, one in maps.items()
    ]
    title = "Loss landscape"
    ranges = "; ".join(
        f"{short(label)} from {loose(one['least'])} to {loose(one['most'])}" for label, one in maps.items()
    )
    draw = partial(_draw, maps=maps, at=at, levels=levels(min(values), max(values)), columns=columns)
    size = (max(4.0, SIDE * columns + 0.6), SIDE * rows + 1.5)
    return [
        Picture(
            "landscape",
            title,
            f"Level lines of the loss around the served models: {ranges}.",
            draw,
            DataTable(title, heads, lines),
            size,
        )
    ]


def levels(least: float, most: float) -> list[float]:
    """Compute ascending levels between two losses above 0, evenly spaced in the logarithm; one if both are equal."""
    ratio = most / least
    spaced = [least * ratio ** (k / (LEVELS - 1)) for k in range(LEVELS)]
    return spaced if all(a < b for a, b in pairwise(spaced)) else [least]


def _draw(figure: Figure, *, maps: Maps, at: Sequence[float], levels: Sequence[float], columns: int) -> None:
    axes = figure.subplots(-(-len(maps) // columns), columns, sharex=True, sharey=True, squeeze=False)
    scale = LogNorm(levels[0], levels[-1]) if len(levels) > 1 else Normalize(levels[0] * 0.9, levels[0] * 1.1)
    pale = LinearSegmentedColormap.from_list(
        "pale", colormaps["Blues"](np.linspace(0.05, 0.6, 64))
    )  # dark lines are legible on it
    shades = None
    for one, (label, run) in zip(axes.flat, maps.items(), strict=False):
        grid = np.array([[math.nan if value is None else value for value in row] for row in run["grid"]])
        shades = one.pcolormesh(at, at, grid, norm=scale, cmap=pale, shading="gouraud", rasterized=True)
        _lines(one, at, grid, levels)
        one.plot([0], [0], marker="+", color=LIGHT["bad"], markersize=9)
        one.set_title(short(label, 28), fontsize=10)
        one.set(aspect="equal", xticks=[at[0], 0, at[-1]], yticks=[at[0], 0, at[-1]])
    for empty in list(axes.flat)[len(maps) :]:
        empty.set_visible(False)
    assert shades is not None, "a study has a run"
    bar = figure.colorbar(shades, ax=axes, label="loss", location="bottom", aspect=40, fraction=0.08)
    bar.outline.set_visible(False)
    bar.minorticks_off()
    ticks = levels[:: max(1, (len(levels) - 1) // 4)]
    bar.set_ticks(list(ticks), labels=[loose(tick) for tick in ticks])
    figure.supxlabel("first direction, lengths of the filters", fontsize=10, color=LIGHT["muted"])
    figure.supylabel("second direction", fontsize=10, color=LIGHT["muted"])


def _lines(axes: Axes, at: Sequence[float], grid: NDArray[np.float64], levels: Sequence[float]) -> None:
    """Draw the level lines that cross this map, with their losses."""
    finite = grid[np.isfinite(grid)]
    crossed = [level for level in levels if len(finite) and finite.min() < level < finite.max()]
    if crossed:
        drawn = axes.contour(at, at, np.ma.masked_invalid(grid), levels=crossed, colors=LIGHT["ink"], linewidths=0.8)
        axes.clabel(drawn, crossed[::2], fontsize=7, fmt=loose)
