"""Draw pictures by matplotlib's objects on Agg: no window, no process-wide state.

Colours are safe for colour-blind readers.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedstrata.analysis.scores import points
from fedstrata.common.errors import ConfigError
from fedstrata.data.statistics.plot import SHOWN, partition_picture
from fedstrata.report.terminal import short_names
from fedstrata.storage.atomic_files import atomic

if TYPE_CHECKING:
    from fedstrata.analysis.comparison import Comparison
    from fedstrata.analysis.records import Findings
    from fedstrata.data.federation import Federation
    from fedstrata.runs.result import Result

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's palette; a ninth line begins again with another stroke."""
KINDS = ("", ".png", ".svg", ".pdf")
"""Suffixes of pictures."""
STROKES = ("-", "--", ":", "-.")


class Picture(Figure):
    """Shows itself in a notebook, without a backend that opens windows."""

    def _repr_png_(self) -> bytes:
        FigureCanvasAgg(self)
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=110, metadata={"Software": None})
        return data.getvalue()

    def write(self, path: Path) -> Path:
        """Draw into a PNG, SVG or PDF file, by its suffix; PNG where it has none.

        Raises:
            ConfigError: another suffix, or a folder that is not there.
        """
        if path.suffix.lower() not in KINDS:
            raise ConfigError(
                f"a picture is a PNG, SVG or PDF file, and {str(path)!r} ends with {path.suffix}; call it"
                f" {path.stem}.png."
            )
        if not path.parent.is_dir() or path.is_dir():
            wrong = (
                f"{str(path)!r} is a folder"
                if path.is_dir()
                else f"there is no folder {str(path.parent)!r} for {path.name}"
            )
            raise ConfigError(f"{wrong}; name a file in a folder that is there.")
        return _save(self, path)


def curve(results: Sequence[Result], path: Path) -> Path:
    """Draw test score and training loss against rounds, a line a run.

    Args:
        results: at least one.
        path: PNG, SVG or PDF by its suffix.
    """
    return curve_picture(results).write(path)


def curve_picture(results: Sequence[Result]) -> Picture:
    """Return the same as a figure."""
    figure = Picture(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    score = _score(results)
    names = short_names([result.name for result in results])
    for index, (result, name) in enumerate(zip(results, names, strict=True)):
        style = _style(index)
        for axes, key in ((left, score), (right, "loss")):
            x, y = _series(result, key)
            axes.plot(x, y, label=name, marker="." if len(x) <= 40 else None, linewidth=1.6, **style)
        personal = _series(result, "personal")
        if personal[0]:
            left.plot(*personal, label=f"{name}, personal", linewidth=1.2, alpha=0.6, **style)
    left.set_ylabel(f"test {score}" if score == "accuracy" else score)
    right.set_ylabel("training loss")
    for axes in (left, right):
        _round_axis(axes)
    if len(left.lines) > 1:
        left.legend(fontsize="small")
    return figure


def comparison_picture(comparison: Comparison, findings: Findings) -> Picture:
    """Draw a line a method, a pane for the shared models and one for the personal ones where clients test.

    The line is the mean over the seeds evaluated in a round; the band, of two seeds or more, one standard deviation to
    either side.
    """
    panes = [score.startswith("personal") for score in findings.headline] or [False]
    figure = Picture(figsize=(4.8 * len(panes), 3.8), layout="constrained")
    names = short_names([line.label for line in findings.lines])
    score = "accuracy" if findings.larger else "RMSE"
    for axes, personal in zip(figure.subplots(1, len(panes), squeeze=False)[0], panes, strict=True):
        for index, (line, name) in enumerate(zip(findings.lines, names, strict=True)):
            style = _style(index)
            rounds, values = _mean_curve(comparison, line.label, personal=personal, regression=not findings.larger)
            middle = np.array([np.mean(seeds) for seeds in values])
            axes.plot(rounds, middle, label=name, linewidth=1.6, marker="." if len(rounds) <= 20 else None, **style)
            if values and min(map(len, values)) > 1:
                half = np.array([np.std(seeds, ddof=1) for seeds in values])
                axes.fill_between(rounds, middle - half, middle + half, color=style["color"], alpha=0.18, linewidth=0)
        if findings.chance is not None and not personal:
            axes.axhline(findings.chance, color="0.5", linewidth=1, linestyle=":", label="chance")
        axes.set_ylabel(f"personal {score}, mean over clients" if personal else f"test {score}")
        _round_axis(axes)
    figure.axes[0].legend(fontsize="small")
    return figure


def _mean_curve(
    comparison: Comparison, label: str, *, personal: bool, regression: bool
) -> tuple[list[int], list[list[float]]]:
    """Return the evaluated rounds, and the scores of the seeds in each."""
    by_round: dict[int, list[float]] = {}
    for result in comparison.runs(label):
        for point in points(result, personal=personal, regression=regression):
            by_round.setdefault(point.round, []).append(point.score)
    rounds = sorted(by_round)
    return rounds, [by_round[number] for number in rounds]


def _style(index: int) -> dict[str, Any]:
    """Return the colour and the stroke of a line."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STROKES[index // len(COLOURS) % len(STROKES)]}


def _round_axis(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, alpha=0.3)


def _score(results: Sequence[Result]) -> str:
    """Choose the score of the left axes: accuracy, or the error of a regression."""
    seen = [row for result in results for row in result.rounds]
    return next((key for key in ("accuracy", "rmse") if any(_value(row, key) is not None for row in seen)), "accuracy")


def _series(result: Result, key: str) -> tuple[list[int], list[float]]:
    """Return rounds (counted from 1) and values, where there is one."""
    pairs = [(int(row["round"]) + 1, value) for row in result.rounds if (value := _value(row, key)) is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _value(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    if value is None:
        value = (row.get("metrics") or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def partition(federation: Federation, path: Path, clients: Sequence[int] | None = None) -> Path:
    """Draw the partition: samples of each class by client, and sizes.

    Args:
        federation: any; of a lazily derived one only the shown clients are looked at.
        path: PNG, SVG or PDF by its suffix.
        clients: ids to show, evenly spaced ones where they are too many to see; default all.
    """
    ids: Sequence[int] = range(federation.clients) if clients is None else clients
    shown = [ids[round(k * (len(ids) - 1) / (SHOWN - 1))] for k in range(SHOWN)] if len(ids) > SHOWN else list(ids)
    with atomic(path) as draft:
        partition_picture(federation, draft, shown)
    return path


def _save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)
    kind = path.suffix.lstrip(".") or "png"
    with atomic(path) as draft:
        figure.savefig(draft, format=kind, dpi=130, metadata={"Software": None} if kind == "png" else None)
    return path
