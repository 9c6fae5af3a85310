"""A comparison as one figure, for scripts and notebooks: the headline score against rounds, mean over seeds with a
band.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from fedstrata.analysis.comparison import Comparison
from fedstrata.analysis.records import Findings
from fedstrata.analysis.scores import points
from fedstrata.report.figures import COLOURS, STROKES, Picture
from fedstrata.report.terminal import short_names


def means(comparison: Comparison, findings: Findings) -> Picture:
    """A line a method, a pane for the shared models and one for the personal ones where clients test.

    The line is the mean over the seeds evaluated in a round; the band, of two seeds or more, one standard deviation to
    either side.
    """
    panes = [score.startswith("personal") for score in findings.headline] or [False]
    figure = Picture(figsize=(4.8 * len(panes), 3.8), layout="constrained")
    names = short_names([line.label for line in findings.lines])
    score = "accuracy" if findings.larger else "RMSE"
    for axes, personal in zip(figure.subplots(1, len(panes), squeeze=False)[0], panes, strict=True):
        for place, (line, name) in enumerate(zip(findings.lines, names, strict=True)):
            style: dict[str, Any] = {
                "color": COLOURS[place % len(COLOURS)],
                "linestyle": STROKES[place // len(COLOURS) % len(STROKES)],
            }
            rounds, values = _curve(comparison, line.label, personal=personal, regression=not findings.larger)
            middle = np.array([np.mean(seeds) for seeds in values])
            axes.plot(rounds, middle, label=name, linewidth=1.6, marker="." if len(rounds) <= 20 else None, **style)
            if values and min(map(len, values)) > 1:
                half = np.array([np.std(seeds, ddof=1) for seeds in values])
                axes.fill_between(rounds, middle - half, middle + half, color=style["color"], alpha=0.18, linewidth=0)
        if findings.chance is not None and not personal:
            axes.axhline(findings.chance, color="0.5", linewidth=1, linestyle=":", label="chance")
        axes.set_xlabel("round")
        axes.set_ylabel(f"personal {score}, mean over clients" if personal else f"test {score}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    return figure


def _curve(
    comparison: Comparison, label: str, *, personal: bool, regression: bool
) -> tuple[list[int], list[list[float]]]:
    """Evaluated rounds, and the scores of the seeds in each."""
    found: dict[int, list[float]] = {}
    for result in comparison.runs(label):
        for point in points(result, personal=personal, regression=regression):
            found.setdefault(point.round, []).append(point.score)
    rounds = sorted(found)
    return rounds, [found[number] for number in rounds]
