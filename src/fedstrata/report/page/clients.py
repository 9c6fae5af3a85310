"""Draw pictures of clients: their data, and their scores."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedstrata.analysis.scores import client_scores
from fedstrata.data.statistics.facts import Facts
from fedstrata.report.page import data_table
from fedstrata.report.page.context import PageContext
from fedstrata.report.page.costs import TICK
from fedstrata.report.page.data_table import DataTable, Head
from fedstrata.report.page.drawing import WIDTH, Picture, amounts, faint_grid
from fedstrata.report.page.text import counted, names, score, short
from fedstrata.report.page.theme import LIGHT

LABELS = 24  # classes up to which each has its name beside its row
CLASSES = 30  # columns of classes in the table behind the partition
BINS = 20


# ---- the partition


def partition(facts: Facts) -> Picture | None:
    """Draw each client's labels as shares of its samples, over bars of its size."""
    if not facts.shown or not facts.sizes:
        return None
    shown = len(facts.shown)
    some = "" if shown == facts.clients else f", {shown} of {facts.clients:,} shown"
    title = "The partition"
    sizes = (
        f"from {min(facts.sizes):,} to {max(facts.sizes):,} training samples, median"
        f" {statistics.median(facts.sizes):,.0f}"
    )
    alt = f"{counted(facts.clients, 'client')}{some}, by {short(facts.law, 60)}: {sizes}{_mixed(facts)}."
    return Picture(
        "partition",
        title,
        alt,
        partial(_draw_partition, facts=facts),
        _partition_table(facts, title),
        (8.0, 4.2),
        _partition_note(facts),
    )


def _mixed(facts: Facts) -> str:
    """Describe how large a client's commonest class is."""
    tops = [max(row) / sum(row) for row in facts.counts if sum(row)]
    return f"; a client's commonest class is {statistics.fmean(tops):.0%} of its samples on average" if tops else ""


def _partition_note(facts: Facts) -> str:
    above = (
        "Above: the share of each class in a client's training samples. Below: how many samples it has."
        if facts.counts
        else ""
    )
    return above or "Training samples of each client."


def _draw_partition(figure: Figure, *, facts: Facts) -> None:
    shown = len(facts.shown)
    if not facts.counts:
        lower = figure.subplots()
    else:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.2))
        counts = np.asarray(facts.counts, dtype=float)  # [clients, classes]
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        image = upper.imshow(shares.T, aspect="auto", cmap="cividis", interpolation="nearest", vmin=0, vmax=1)
        bar = figure.colorbar(image, ax=upper, label="share of its samples", ticks=[0, 0.5, 1])
        bar.outline.set_visible(False)
        upper.set_ylabel("class")
        if len(facts.labels) <= LABELS:
            upper.set_yticks(
                range(len(facts.labels)),
                [short(label, 14) for label in facts.labels],
                fontsize=9 if len(facts.labels) > 12 else 10.5,
            )
        upper.tick_params(length=0)
        for side in upper.spines.values():
            side.set_visible(False)
    lower.bar(range(shown), facts.sizes, color=LIGHT["c1"], width=0.82)
    lower.set_xlabel("client" if shown == facts.clients else f"client ({shown} of {facts.clients:,}, evenly spaced)")
    step = -(-shown // (10 if any(len(name) > 4 for name in facts.names) else 20))
    lower.set_xticks(
        range(0, shown, step),
        [short(facts.names[k], 9) if facts.names else str(facts.shown[k]) for k in range(0, shown, step)],
    )
    if facts.names and any(len(name) > 4 for name in facts.names):
        lower.tick_params(axis="x", labelrotation=40)
    lower.set_xlim(-0.6, shown - 0.4)
    amounts(lower.yaxis, "rounds", "samples", 3)
    faint_grid(lower)


def _partition_table(facts: Facts, caption: str) -> DataTable:
    classes = min(len(facts.labels), CLASSES) if facts.counts else 0
    more = (
        f" (the first {classes} of {len(facts.labels)} classes)" if classes < len(facts.labels) and facts.counts else ""
    )
    heads = [Head("client", words=True), Head("samples"), *(Head(short(label, 14)) for label in facts.labels[:classes])]
    rows = []
    for k, client in enumerate(facts.shown):
        name = facts.names[k] if facts.names else str(client)
        held = [data_table.number_cell(str(n), n) for n in facts.counts[k][:classes]] if facts.counts else []
        rows.append(
            [
                data_table.text_cell(short(name, 24), name),
                data_table.number_cell(f"{facts.sizes[k]:,}", facts.sizes[k]),
                *held,
            ]
        )
    return DataTable(caption + more, heads, rows)


# ---- scores of clients


def scores_of(context: PageContext) -> dict[int, list[float]]:
    """List clients' scores with their personal models in the last round, all seeds together, by index of the method."""
    result = {}
    for index, runs in enumerate(context.runs):
        values = [value for run in runs for value in client_scores(run, regression=not context.classes)]
        if values:
            result[index] = values
    return result


def worst_tenth(values: Sequence[float], *, larger: bool = True) -> float:
    """Return the mean of the worst tenth, at least one."""
    return statistics.fmean(sorted(values, reverse=not larger)[: max(1, len(values) // 10)])


def served(context: PageContext) -> Picture | None:
    """Draw a histogram of personal scores a method, with the mean and the worst tenth."""
    scores = scores_of(context)
    if not scores:
        return None
    title = "Personal models, client by client"
    tenths = sorted((worst_tenth(values, larger=context.classes), index) for index, values in scores.items())
    (low, worst), (high, best) = (tenths[0], tenths[-1]) if context.findings.larger else (tenths[-1], tenths[0])
    alt = f"{title}: the worst tenth of the clients has {score(high)} with {context.names[best]}"
    alt += f" and {score(low)} with {context.names[worst]}." if best != worst else "."
    heads = [
        Head("method", words=True),
        Head("clients x seeds"),
        Head("mean"),
        Head("worst tenth"),
        Head("lowest"),
        Head("median"),
        Head("highest"),
        Head("spread"),
    ]
    rows = [
        [data_table.text_cell(context.names[p], context.labels[p], series=p), *_row(values, larger=context.classes)]
        for p, values in scores.items()
    ]
    draw = partial(_draw_served, context=context, scores=scores)
    note = "Height: share of the clients, all seeds together. Full mark: mean; hollow mark: mean of the worst tenth."
    return Picture("clients", title, alt, draw, DataTable(title, heads, rows), (WIDTH, 1.0 + 0.5 * len(scores)), note)


def _row(values: Sequence[float], *, larger: bool) -> list[data_table.Cell]:
    setting_text = [
        statistics.fmean(values),
        worst_tenth(values, larger=larger),
        min(values),
        statistics.median(values),
        max(values),
        statistics.pstdev(values),
    ]
    return [
        data_table.number_cell(f"{len(values):,}", len(values)),
        *(data_table.number_cell(score(value), value) for value in setting_text),
    ]


def _draw_served(figure: Figure, *, context: PageContext, scores: Mapping[int, Sequence[float]]) -> None:
    axes = figure.subplots()
    everything = [value for values in scores.values() for value in values]
    low, high = (0.0, 1.0) if context.classes else (min(everything), max(everything) + 1e-9)
    edges = np.linspace(low, high, BINS + 1)
    tallest = max(float(np.histogram(values, edges)[0].max()) / len(values) for values in scores.values())
    for at, (index, values) in enumerate(scores.items()):
        stroke = context.strokes[index]
        shares = np.histogram(values, edges)[0] / len(values) / tallest * 0.8  # [BINS]
        floor = at + 0.4
        axes.stairs(
            floor - shares,
            edges,
            baseline=floor,
            fill=True,
            color=stroke.hex,
            alpha=0.32,
            linewidth=0,
            gid=f"series-{index}-bars",
        )
        axes.stairs(floor - shares, edges, baseline=floor, color=stroke.hex, linewidth=1.1, gid=f"series-{index}-edge")
        axes.plot(
            [statistics.fmean(values)],
            [floor],
            "o",
            color=stroke.hex,
            markersize=6.5,
            gid=f"series-{index}-mean",
            clip_on=False,
        )
        hollow: dict[str, Any] = {
            "markerfacecolor": LIGHT["card"],
            "markersize": 7,
            "markeredgewidth": 1.6,
            "clip_on": False,
        }
        axes.plot(
            [worst_tenth(values, larger=context.classes)],
            [floor],
            "o",
            color=stroke.hex,
            gid=f"series-{index}-worst",
            **hollow,
        )
    tags = names(context.labels, TICK)
    axes.set_yticks([at + 0.25 for at in range(len(scores))], [tags[index] for index in scores])
    for text in axes.get_yticklabels():
        text.set_color(LIGHT["ink"])
    axes.set_ylim(len(scores) - 0.4, -0.55)
    axes.set_xlim(low, high)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(
        "accuracy of a client's personal model"
        if context.classes
        else "root of the mean squared error of a client's personal model"
    )
    faint_grid(axes, "x")
