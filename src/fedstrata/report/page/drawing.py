"""Draw pictures by matplotlib's objects: once for the page (inline SVG) and for the files (PNG and SVG)."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedstrata.report.page.data_table import DataTable
from fedstrata.report.page.theme import LIGHT, Stroke
from fedstrata.storage.atomic_files import atomic

WIDTH, HEIGHT = 5.0, 3.4  # inches at 72 points: small enough that letters stay legible on a telephone
DPI = 150
LETTERS = 10  # of a title to an inch


@dataclass(frozen=True)
class Picture:
    """Describes one picture, with its text and numbers.

    Attributes:
        name: of its files, and of what is inside; unique on a page.
        title: a few words.
        alt: one sentence that says with numbers what is to be seen.
        draw: puts it on a figure.
        table: the numbers behind it.
        size: inches.
        note: how to read it.
        key: places of the methods that the files' legend names; the page has its own.
    """

    name: str
    title: str
    alt: str
    draw: Callable[[Figure], None]
    table: DataTable
    size: tuple[float, float] = (WIDTH, HEIGHT)
    note: str = ""
    key: Sequence[int] = ()


@contextmanager
def _drawing(salt: str) -> Iterator[None]:
    """Configure a drawing: text stays text, names are no formulas, equal pictures give equal bytes."""
    settings: dict[str, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "text.parse_math": False,
        "axes.unicode_minus": True,
        "font.size": 11,
        "axes.labelsize": 11,
        "xtick.labelsize": 10.5,
        "ytick.labelsize": 10.5,
        "text.color": LIGHT["ink"],
        "axes.labelcolor": LIGHT["muted"],
        "axes.edgecolor": LIGHT["edge"],
        "axes.facecolor": "none",
        "xtick.color": LIGHT["edge"],
        "ytick.color": LIGHT["edge"],
        "xtick.labelcolor": LIGHT["muted"],
        "ytick.labelcolor": LIGHT["muted"],
        "grid.color": LIGHT["line"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "lines.linewidth": 1.9,
    }
    with rc_context(cast("Any", settings)), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font"
        )  # names in any script; the SVG keeps them as text
        yield


def figure_of(picture: Picture, strokes: Sequence[Stroke] = (), names: Sequence[str] = ()) -> Figure:
    """Draw the figure; with names, a legend below the axes, which covers no data."""
    shown = list(picture.key) if names else []
    columns = min(len(shown), 3) or 1
    below = 0.24 * -(-len(shown) // columns)
    figure = Figure(figsize=(picture.size[0], picture.size[1] + below), layout="constrained")
    picture.draw(figure)
    if shown:
        handles = [
            Line2D(
                [],
                [],
                color=strokes[i].hex,
                linestyle=(0, strokes[i].dash or ()) if strokes[i].dash else "-",
                marker=strokes[i].marker,
                markersize=5,
            )
            for i in shown
        ]
        figure.legend(
            handles,
            [names[i] for i in shown],
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=9,
            handlelength=3.2,
        )
    return figure


def svg_text(picture: Picture) -> str:
    """Return the picture alone as SVG, transparent, as matplotlib writes it."""
    with _drawing(picture.name):
        figure = figure_of(picture)
        figure.patch.set_visible(False)
        FigureCanvasSVG(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", dpi=DPI, metadata={"Date": None})
    return text.getvalue()


def save(picture: Picture, folder: Path, strokes: Sequence[Stroke], names: Sequence[str]) -> list[Path]:
    """Save the picture as PNG and SVG files, in light colours, with a title and a legend."""
    files = [folder / f"{picture.name}.{kind}" for kind in ("png", "svg")]
    with _drawing(picture.name):
        figure = figure_of(picture, strokes, names)
        figure.patch.set_facecolor("white")
        figure.suptitle(textwrap.fill(picture.title, max(20, int(LETTERS * picture.size[0]))), fontsize=11.5)
        FigureCanvasAgg(figure)
        for file in files:
            kind = file.suffix[1:]
            setting_text = (
                {"Software": None, "Description": picture.alt}
                if kind == "png"
                else {"Date": None, "Title": picture.title, "Description": picture.alt}
            )
            with atomic(file) as draft:
                figure.savefig(draft, format=kind, dpi=DPI, metadata=setting_text)
    return files


# ---- parts of drawings


def line(
    axes: Axes, index: int, stroke: Stroke, x: Sequence[float], y: Sequence[float], half: Sequence[float] | None = None
) -> None:
    """Draw a method's line with its band and a few markers; the page can highlight it."""
    top = 3.0 if stroke.colour == "c0" else 2.0 + index / 100
    if half is not None and any(half):
        low, high = [a - b for a, b in zip(y, half, strict=True)], [a + b for a, b in zip(y, half, strict=True)]
        axes.fill_between(x, low, high, color=stroke.hex, alpha=0.13, linewidth=0, zorder=1, gid=f"series-{index}-band")
    step = max(1, len(x) // 7)
    axes.plot(
        x,
        y,
        color=stroke.hex,
        linestyle=(0, stroke.dash) if stroke.dash else "-",
        marker=stroke.marker,
        markersize=4.5,
        markevery=(min(index, step - 1) if len(x) > step else 0, step),
        zorder=top,
        gid=f"series-{index}-line",
    )


UNITS: Mapping[str, Sequence[tuple[float, str]]] = {
    "bytes": tuple((1000.0**k, unit) for k, unit in enumerate(("B", "kB", "MB", "GB", "TB", "PB"))),
    "flops": tuple(
        (1000.0**k, unit) for k, unit in enumerate(("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))
    ),
    "seconds": ((1.0, "s"), (60.0, "min"), (3600.0, "h")),
}


def amounts(axis: Axis, kind: str, label: str, most: int = 5) -> None:
    """Set ticks and label of a cost axis, in the largest unit that its end has at least two of; or of whole rounds."""
    axis.set_label_text(label)
    if kind not in UNITS:
        axis.set_major_locator(MaxNLocator(most, integer=kind == "rounds"))
        return
    low, high = axis.get_view_interval()
    factor, unit = max(((f, u) for f, u in UNITS[kind] if high >= 2 * f), default=UNITS[kind][0])
    ticks = [
        t for t in MaxNLocator(most).tick_values(low / factor, high / factor) if low / factor <= t <= high / factor
    ]
    axis.set_ticks([t * factor for t in ticks], [f"{t:g}" for t in ticks])
    axis.set_label_text(f"{label}, {unit}" if label else unit)


def faint_grid(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Draw thin lines behind the data."""
    axes.grid(visible=True, axis=which, linewidth=0.7)
    axes.tick_params(axis=which, length=0)


def level(axes: Axes, value: float, text: str) -> None:
    """Draw a dashed level with its name to the right of the axes, where no data are."""
    axes.axhline(value, color=LIGHT["edge"], linewidth=1, linestyle=(0, (3, 3)), zorder=0.5)
    axes.annotate(
        text,
        (1, value),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        color=LIGHT["muted"],
        fontsize=9.5,
    )
