"""Draw pictures of measures: any panel, by its kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedstrata.diagnostics.panel import Numbers, Panel
from fedstrata.report.page import data_table
from fedstrata.report.page.costs import TICK
from fedstrata.report.page.curve_data import POINTS
from fedstrata.report.page.data_table import Cell, DataTable, Head
from fedstrata.report.page.drawing import WIDTH, Picture, amounts, faint_grid, line
from fedstrata.report.page.text import counted, loose, names, plain, short
from fedstrata.report.page.theme import DASHES, HUES, LIGHT, MARKERS, Stroke

ROWS = 20  # of the table behind lines
ROUNDING = 1e-12  # a spread of equal numbers comes out as this share of their mean at most
BARS = 24  # up to which each has its number written beside it
APART = 90  # places at which strokes of series that are no methods begin, so that the page does not take them for one


class Palette(Protocol):
    """Gives series their strokes: a page context, or PLAIN, which knows no methods."""

    @property
    def labels(self) -> Sequence[str]:
        """List the series that have a stroke."""

    @property
    def strokes(self) -> Sequence[Stroke]:
        """List their strokes, in the same order."""


@dataclass(frozen=True)
class _Plain:
    labels: Sequence[str] = ()
    strokes: Sequence[Stroke] = ()


PLAIN: Palette = _Plain()
"""For panels outside a comparison: strokes by order."""


def panel_picture(
    panel: Panel, index: int, palette: Palette, like: Sequence[Panel] = (), name: str | None = None
) -> Picture | None:
    """Draw a panel; None for a table, which has no picture.

    Args:
        panel: any.
        index: makes its name unique.
        palette: gives methods their strokes.
        like: panels of the same measure; maps of one measure have one scale of colours.
        name: of its files; default measure-INDEX.
    """
    if panel.kind == "table" or not panel.x or not numbers(panel):
        return None
    labels = list(palette.labels)
    indices = {one: labels.index(one) if one in labels else APART + k for k, one in enumerate(panel.series)}
    height = {
        "lines": 3.4,
        "bars": 1.2 + 0.28 * len(panel.series) * len(panel.x) ** 0.9,
        "heat": 1.9 + 0.26 * len(panel.series),
    }[panel.kind]
    styles = {one: stroke_of(p, palette) for one, p in indices.items()}
    draw = (
        partial(_heat, panel=panel, like=[p for p in like if p.kind == "heat"] or [panel])
        if panel.kind == "heat"
        else partial(_lines if panel.kind == "lines" else _bars, panel=panel, indices=indices, styles=styles)
    )
    key = tuple(p for p in indices.values() if p < APART)
    return Picture(
        name or f"measure-{index}",
        plain(panel.title),
        _alt(panel),
        draw,
        panel_grid(panel),
        (WIDTH, min(height, 9.0)),
        "Band: one spread each way." if panel.spread and panel.kind == "lines" else "",
        key,
    )


def panel_grid(panel: Panel) -> DataTable:
    """Build the table of a panel's numbers; evenly spaced columns where lines have very many."""
    kept = list(range(len(panel.x)))
    if panel.kind == "lines" and len(kept) > ROWS:
        kept = sorted({round(k * (len(panel.x) - 1) / (ROWS - 1)) for k in range(ROWS)})
    tags = names(list(panel.series))
    if panel.kind == "lines":
        heads = [Head(plain(panel.x_name)), *(Head(tag) for tag in tags)]
        rows: list[list[Cell]] = [[_x(panel.x[k]), *(_value(panel, name, k) for name in panel.series)] for k in kept]
        return DataTable(plain(panel.title), heads, rows, sort=False)
    heads = [Head("row", "what the row is of", words=True), *(Head(short(_tick(x), 24)) for x in panel.x)]
    return DataTable(
        plain(panel.title),
        heads,
        [
            [data_table.text_cell(tag, name), *(_value(panel, name, k) for k in kept)]
            for tag, name in zip(tags, panel.series, strict=True)
        ],
    )


def _x(x: float | str) -> Cell:
    return data_table.text_cell(short(x, 24), x) if isinstance(x, str) else data_table.number_cell(loose(x), float(x))


def _tick(x: float | str) -> str:
    return x if isinstance(x, str) else loose(float(x))


def _at(numbers: Numbers, k: int) -> float | None:
    value = numbers[k] if k < len(numbers) else None
    return value if value is not None and math.isfinite(value) else None


def _value(panel: Panel, name: str, k: int) -> Cell:
    value, half = _at(panel.series[name], k), _at(panel.spread.get(name, ()), k)
    if value is not None and half is not None and abs(half) <= ROUNDING * abs(value):
        half = 0.0
    return data_table.number_cell(loose(value) + (f" ± {loose(half)}" if value is not None and half else ""), value)


def numbers(panel: Panel) -> list[tuple[float, str, int]]:
    """List all numbers of a panel, each with its series and its index along ``x``."""
    return [
        (value, name, k)
        for name, values in panel.series.items()
        for k in range(len(panel.x))
        if (value := _at(values, k)) is not None
    ]


def _alt(panel: Panel) -> str:
    values = numbers(panel)
    (low, low_name, low_at), (high, high_name, high_at) = min(values), max(values)
    unit = f" {plain(panel.y_name)}" if panel.y_name else ""
    where = f"{short(panel.x_name, 30)} " if panel.x_name else ""
    least = f"{loose(low)}{unit} ({short(low_name)}, {where}{short(_tick(panel.x[low_at]), 20)})"
    most = f"{loose(high)} ({short(high_name)}, {where}{short(_tick(panel.x[high_at]), 20)})"
    return f"{plain(panel.title)}, {counted(len(panel.series), 'series', 'series')}: from {least} to {most}."


def stroke_of(index: int, palette: Palette) -> Stroke:
    """Return a method's stroke; series that are no methods get strokes by their order."""
    if index < APART:
        return palette.strokes[index]
    k = index - APART
    return Stroke(f"c{k % HUES + 1}", DASHES[k % len(DASHES)], MARKERS[(k + 1) % len(MARKERS)])


def _lines(figure: Figure, *, panel: Panel, indices: Mapping[str, int], styles: Mapping[str, Stroke]) -> None:
    axes = figure.subplots()
    categorical = bool(panel.x) and isinstance(panel.x[0], str)
    across: Sequence[float] = range(len(panel.x)) if categorical else [float(x) for x in panel.x]
    for name, values in panel.series.items():
        kept = [k for k in range(len(panel.x)) if _at(values, k) is not None]
        if len(kept) > POINTS:
            kept = [kept[round(k * (len(kept) - 1) / (POINTS - 1))] for k in range(POINTS)]
        half = [_at(panel.spread.get(name, ()), k) or 0.0 for k in kept]
        line(
            axes,
            indices[name],
            styles[name],
            [across[k] for k in kept],
            [cast("float", _at(values, k)) for k in kept],
            half,
        )
    if categorical:
        axes.set_xticks(across, [short(x, 14) for x in panel.x])
    else:
        amounts(axes.xaxis, "rounds" if panel.x_name.startswith("round") else "", short(panel.x_name, 60))
    if any(index >= APART for index in indices.values()):
        _own_legend(figure, styles)
    axes.set_xlabel(short(panel.x_name, 60))
    axes.set_ylabel(short(panel.y_name, 40))
    axes.margins(x=0.02)
    faint_grid(axes)


def _own_legend(figure: Figure, styles: Mapping[str, Stroke], *, bars: bool = False) -> None:
    """Draw a legend of series that are no methods: the page's list of methods does not have them."""
    handles: list[Any] = (
        [Patch(color=s.hex) for s in styles.values()]
        if bars
        else [
            Line2D([], [], color=s.hex, linestyle=(0, s.dash) if s.dash else "-", marker=s.marker, markersize=5)
            for s in styles.values()
        ]
    )
    tags = names(list(styles), 26)
    figure.legend(handles, tags, loc="outside lower center", ncols=2, frameon=False, fontsize=9.5, handlelength=3)


def _bars(figure: Figure, *, panel: Panel, indices: Mapping[str, int], styles: Mapping[str, Stroke]) -> None:
    axes = figure.subplots()
    count = len(panel.series)
    for at, (name, values) in enumerate(panel.series.items()):
        offset = (at - (count - 1) / 2) * 0.8 / count
        pairs = [(k, value) for k in range(len(panel.x)) if (value := _at(values, k)) is not None]
        for k, value in pairs:
            bar = axes.barh(k + offset, value, height=0.74 / count, color=styles[name].hex)
            bar[0].set_gid(f"series-{indices[name]}-bar_{k}")
            if count * len(panel.x) <= BARS:
                axes.bar_label(bar, [loose(value)], padding=3, fontsize=8.5)
    axes.margins(x=0.14)
    if all(value >= 0 for value, _, _ in numbers(panel)):
        axes.set_xlim(left=0)
    axes.set_yticks(range(len(panel.x)), [short(_tick(x), TICK) for x in panel.x])
    axes.set_ylim(len(panel.x) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(short(panel.y_name, 60))
    axes.set_ylabel(short(panel.x_name, 40))
    if any(index >= APART for index in indices.values()):
        _own_legend(figure, styles, bars=True)
    faint_grid(axes, "x")


def _heat(figure: Figure, *, panel: Panel, like: Sequence[Panel]) -> None:
    axes = figure.subplots()
    everything = [value for one in like for value, _, _ in numbers(one)]
    table = np.array(
        [
            [math.nan if (v := _at(values, k)) is None else v for k in range(len(panel.x))]
            for values in panel.series.values()
        ]
    )
    image = axes.imshow(
        table, aspect="auto", cmap="cividis", interpolation="nearest", vmin=min(everything), vmax=max(everything)
    )
    bar = figure.colorbar(
        image, ax=axes, label=short(panel.y_name, 60), location="bottom", aspect=40, fraction=0.12, ticks=MaxNLocator(4)
    )
    bar.outline.set_visible(False)
    axes.set_yticks(range(len(panel.series)), list(names(list(panel.series), TICK)))
    step = max(1, -(-len(panel.x) // 8))
    axes.set_xticks(range(0, len(panel.x), step), [short(_tick(panel.x[k]), 10) for k in range(0, len(panel.x), step)])
    axes.set_xlabel(short(panel.x_name, 60))
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_facecolor(LIGHT["soft"])
