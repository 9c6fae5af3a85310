"""Pictures, drawn by matplotlib's objects on Agg: no window, no state of a process.

Colours are safe for colour-blind readers.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedstrata.common.errors import ConfigError
from fedstrata.data.statistics.plot import SHOWN, partition_picture
from fedstrata.report.files import atomic
from fedstrata.report.terminal import short_names

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation
    from fedstrata.runs.result import Result

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's palette; a ninth line begins again with another stroke."""
KINDS = ("", ".png", ".svg", ".pdf")
"""Suffixes of pictures."""
STROKES = ("-", "--", ":", "-.")


class Picture(Figure):
    """A figure that a notebook shows by itself: without a backend that owns windows, nobody else would draw it."""

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
    """Test score and training loss against rounds, a line a run.

    Args:
        results: at least one.
        path: PNG, SVG or PDF by its suffix.
    """
    return curve_picture(results).write(path)


def curve_picture(results: Sequence[Result]) -> Picture:
    """The same as a figure."""
    figure = Picture(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    score = _score(results)
    names = short_names([result.name for result in results])
    for place, (result, name) in enumerate(zip(results, names, strict=True)):
        style: dict[str, Any] = {
            "color": COLOURS[place % len(COLOURS)],
            "linestyle": STROKES[place // len(COLOURS) % len(STROKES)],
        }
        for axes, key in ((left, score), (right, "loss")):
            x, y = _series(result, key)
            axes.plot(x, y, label=name, marker="." if len(x) <= 40 else None, linewidth=1.6, **style)
        personal = _series(result, "personal")
        if personal[0]:
            left.plot(*personal, label=f"{name}, personal", linewidth=1.2, alpha=0.6, **style)
    left.set_ylabel(f"test {score}" if score == "accuracy" else score)
    right.set_ylabel("training loss")
    for axes in (left, right):
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(visible=True, alpha=0.3)
    if len(left.lines) > 1:
        left.legend(fontsize="small")
    return figure


def _score(results: Sequence[Result]) -> str:
    """What the left axes show: accuracy, or the error of a regression."""
    seen = [row for result in results for row in result.rounds]
    return next((key for key in ("accuracy", "rmse") if any(_value(row, key) is not None for row in seen)), "accuracy")


def _series(result: Result, key: str) -> tuple[list[int], list[float]]:
    """Rounds (counted from 1) and values, where there is one."""
    pairs = [(int(row["round"]) + 1, value) for row in result.rounds if (value := _value(row, key)) is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _value(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    if value is None:
        value = (row.get("metrics") or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def partition(federation: Federation, path: Path, clients: Sequence[int] | None = None) -> Path:
    """Who holds what: samples of each class by client, and sizes.

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
