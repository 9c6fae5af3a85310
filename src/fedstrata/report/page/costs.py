"""Draw what accuracy costs: fronts against bytes and FLOPs, bars of costs, differences to the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedstrata.analysis.records import Difference, Spread
from fedstrata.analysis.scores import score_label
from fedstrata.report.page import data_table
from fedstrata.report.page.context import PageContext, head
from fedstrata.report.page.data_table import DataTable, Head
from fedstrata.report.page.drawing import WIDTH, Picture, amounts, faint_grid
from fedstrata.report.page.text import cost, listed, names, score, signed, spread
from fedstrata.report.page.theme import LIGHT

ROW = 0.34  # inches of a method's row
TICK = 24  # letters of a name beside a row
DIRECT = 10  # methods up to which a front's points carry their names
COST_LABELS = {"bytes": "bytes sent, up and down", "flops": "clients' training"}


# ---- fronts


def fronts(context: PageContext) -> list[Picture]:
    """Draw the headline score against bytes and against FLOPs; nothing for one method alone."""
    if context.alone:
        return []
    return [
        picture
        for key in context.findings.headline
        for kind in COST_LABELS
        if (picture := _front(context, kind, key)) is not None
    ]


def _front(context: PageContext, kind: str, key: str) -> Picture | None:
    points = {}
    for index in range(len(context.labels)):
        price, value, line = context.cost(index, kind), context.score(index, key), context.lines[index]
        if (
            price is not None
            and value is not None
            and not (line is not None and line.shared_unused and not key.startswith("personal"))
        ):
            points[index] = (price.mean, value.mean)
    if len(points) < 2:
        return None
    on = [
        index
        for index in points
        if (line := context.lines[index]) is not None and kind in line.fronts.get(key, line.front)
    ]
    members = [
        f"{context.names[p]} ({cost(kind, points[p][0])}, {score(points[p][1])})"
        for p in sorted(on, key=lambda p: points[p])
    ]
    rows = [
        [
            data_table.text_cell(context.names[p], context.labels[p], series=p),
            data_table.number_cell(cost(kind, x), x),
            data_table.number_cell(score(y), y),
            data_table.text_cell("yes" if p in on else "no"),
        ]
        for p, (x, y) in points.items()
    ]
    title = f"{head(key).capitalize() if context.classes else head(key)} against {COST_LABELS[kind]}"
    heads = [Head("method", words=True), Head(kind), Head(head(key)), Head("on the front", words=True)]
    return Picture(
        name=f"front-{key.replace('_', '-')}-{kind}",
        title=title,
        alt=(
            f"{title}; no method is both better and cheaper than these: {listed(members)}."
            if members
            else f"{title}, {len(points)} methods."
        ),
        draw=partial(_draw_front, context=context, kind=kind, key=key, points=points, on=on),
        table=DataTable(title, heads, rows),
        note=_front_note(context, key),
        key=tuple(points),
    )


def _front_note(context: PageContext, key: str) -> str:
    out = [context.names[index] for index, line in enumerate(context.lines) if line is not None and line.shared_unused]
    note = "Filled, on the line: no other method is better and cheaper. Hollow: some other method is."
    return (
        note
        if key.startswith("personal") or not out
        else f"{note} Left out, as no client uses the shared model: {listed(out)}."
    )


def _draw_front(
    figure: Figure,
    *,
    context: PageContext,
    kind: str,
    key: str,
    points: Mapping[int, tuple[float, float]],
    on: Sequence[int],
) -> None:
    axes = figure.subplots()
    steps = sorted(points[p] for p in on)
    if len(steps) > 1:
        axes.plot(
            [x for x, _ in steps],
            [y for _, y in steps],
            drawstyle="steps-post",
            color=LIGHT["edge"],
            linewidth=1.2,
            linestyle=(0, (4, 3)),
        )
    for index, (x, y) in points.items():
        stroke, filled = context.strokes[index], index in on
        axes.plot(
            [x],
            [y],
            stroke.marker,
            color=stroke.hex,
            markersize=9 if filled else 8,
            markerfacecolor=stroke.hex if filled else "none",
            markeredgewidth=1.8,
            gid=f"series-{index}-dot",
        )
        _whisker(axes, context, index, key, x)
    axes.margins(x=0.16, y=0.16)
    if len(points) <= DIRECT:
        _direct(axes, context, points)
    axes.set_ylabel("accuracy" if context.classes else head(key))
    amounts(axes.xaxis, kind, COST_LABELS[kind])
    faint_grid(axes)


def _whisker(axes: Axes, context: PageContext, index: int, key: str, x: float) -> None:
    value = context.score(index, key)
    if value is not None and value.std:
        low, high = value.mean - value.std, value.mean + value.std
        axes.plot([x, x], [low, high], color=context.strokes[index].hex, linewidth=1.2, gid=f"series-{index}-spread")


def _direct(axes: Axes, context: PageContext, points: Mapping[int, tuple[float, float]]) -> None:
    """Write names beside their points, moved apart where they would overlap.

    A thin line leads from a point to a name that was moved.
    """
    tags = names(context.labels, 18)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    spots = {index: ((x - left) / (right - left), (y - bottom) / (top - bottom)) for index, (x, y) in points.items()}
    heights = _apart(spots)
    for index, (across, up) in spots.items():
        side = across > 0.6
        moved = abs(heights[index] - up) > 0.02
        leader = {"arrowstyle": "-", "color": LIGHT["edge"], "linewidth": 0.7, "shrinkA": 0, "shrinkB": 5}
        beside = (across + (-0.06 if side else 0.06), heights[index])
        axes.annotate(
            tags[index],
            (across, up),
            beside,
            "axes fraction",
            "axes fraction",
            leader if moved else None,
            annotation_clip=False,
            fontsize=10,
            ha="right" if side else "left",
            va="center",
            gid=f"series-{index}-name",
        )


def _apart(spots: Mapping[int, tuple[float, float]], gap: float = 0.075) -> dict[int, float]:
    """Compute heights of names, in shares of the axes: near their points, at least ``gap`` from others beside them."""
    heights = {index: up for index, (_, up) in spots.items()}
    order = sorted(spots, key=lambda index: (spots[index][1], index))
    for _ in range(200):
        for k, low in enumerate(order):
            for high in order[k + 1 :]:
                short_of = gap - (heights[high] - heights[low])
                if short_of > 0 and abs(spots[low][0] - spots[high][0]) < 0.45:
                    heights[low] -= short_of / 2
                    heights[high] += short_of / 2
    return heights


# ---- differences


def differences(context: PageContext) -> list[Picture]:
    """Draw paired differences to the baseline with their intervals, a picture a headline score."""
    pictures = []
    for key in context.findings.headline:
        rows = {
            index: line.differences[key]
            for index, line in enumerate(context.lines)
            if line is not None and key in line.differences and index != context.baseline
        }
        if rows and context.baseline is not None:
            pictures.append(_differences(context, key, rows))
    return pictures


VERDICT = {"better": "good", "worse": "bad"}


def _differences(context: PageContext, key: str, rows: Mapping[int, Difference]) -> Picture:
    assert context.baseline is not None
    base = context.names[context.baseline]
    title = f"Difference to {base}: {head(key)}"
    ends = sorted((d.mean, index) for index, d in rows.items())
    shown = [context.names[p] for p, d in rows.items() if d.verdict == "better"]
    conclusion = f"shown to be better: {listed(shown)}" if shown else "none is shown to be better"
    alt = (
        f"{title}: from {signed(ends[0][0])} ({context.names[ends[0][1]]}) to {signed(ends[-1][0])}"
        f" ({context.names[ends[-1][1]]}); {conclusion}."
    )
    table = DataTable(
        title,
        [
            Head("method", words=True),
            Head("difference"),
            Head("95 % interval"),
            Head("p, corrected"),
            Head("verdict", words=True),
        ],
        [
            [
                data_table.text_cell(context.names[p], context.labels[p], series=p),
                data_table.number_cell(signed(d.mean), d.mean),
                data_table.number_cell("-" if d.low is None else f"{signed(d.low)} to {signed(d.high)}", d.low),
                data_table.number_cell("-" if d.corrected is None else f"{d.corrected:.3g}", d.corrected),
                data_table.text_cell(d.verdict, tone=VERDICT.get(d.verdict, "")),
            ]
            for p, d in rows.items()
        ],
    )
    note = (
        f"Mean over seeds of the paired difference in {score_label(key)}, with its 95 % interval. Filled: shown to"
        " differ,"
        " corrected for many methods."
    )
    return Picture(
        f"difference-{key.replace('_', '-')}",
        title,
        alt,
        partial(_draw_differences, context=context, rows=rows, base=base),
        table,
        (WIDTH, 1.0 + ROW * len(rows)),
        note,
        tuple(rows),
    )


def _draw_differences(figure: Figure, *, context: PageContext, rows: Mapping[int, Difference], base: str) -> None:
    axes = figure.subplots()
    axes.axvline(0, color=LIGHT["edge"], linewidth=1.2)
    for at, (index, d) in enumerate(rows.items()):
        stroke = context.strokes[index]
        if d.low is not None and d.high is not None:
            axes.plot(
                [d.low, d.high],
                [at, at],
                color=stroke.hex,
                linewidth=2.2,
                solid_capstyle="butt",
                gid=f"series-{index}-interval",
            )
        style: dict[str, Any] = {
            "markersize": 8,
            "markerfacecolor": stroke.hex if d.verdict in VERDICT else LIGHT["card"],
            "markeredgewidth": 1.8,
        }
        axes.plot([d.mean], [at], stroke.marker, color=stroke.hex, gid=f"series-{index}-mean", **style)
    rows_axis(axes, context, list(rows))
    amounts(axes.xaxis, "", f"difference to {base}")
    axes.margins(x=0.08)
    faint_grid(axes, "x")


# ---- costs

COSTS = {"bytes": "Bytes sent", "flops": "Clients' training", "seconds": "Training time"}


def costs(context: PageContext) -> list[Picture]:
    """Draw bars of bytes up and down, of FLOPs and of seconds."""
    return [picture for kind in COSTS if (picture := _costs(context, kind)) is not None]


def _costs(context: PageContext, kind: str) -> Picture | None:
    parts = ("bytes_up", "bytes_down") if kind == "bytes" else (kind,)
    rows = {
        index: [context.cost(index, part) for part in parts]
        for index in range(len(context.labels))
        if all(context.cost(index, part) is not None for part in parts)
    }
    if not rows:
        return None
    totals = sorted((sum(s.mean for s in spreads if s), index) for index, spreads in rows.items())
    title = COSTS[kind]
    (low, least), (high, most) = totals[0], totals[-1]
    alt = f"{title} by a run: {cost(kind, low)}."
    if len(totals) > 1:
        alt = (
            f"{title} by a run: from {cost(kind, low)} ({context.names[least]}) to {cost(kind, high)}"
            f" ({context.names[most]})."
        )
    heads = {"bytes_up": "up", "bytes_down": "down"}
    table = DataTable(
        title,
        [Head("method", words=True), *(Head(heads.get(part, kind)) for part in parts)],
        [
            [
                data_table.text_cell(context.names[p], context.labels[p], series=p),
                *(data_table.number_cell(_with_std(kind, s), s.mean) for s in spreads if s),
            ]
            for p, spreads in rows.items()
        ],
    )
    note = (
        "Full: from clients to the server; pale: from the server to clients. Payload, without framing."
        if kind == "bytes"
        else ""
    )
    if kind == "seconds":
        note = "Training rounds alone, without evaluation; times are of this machine."
    values = {index: [s.mean for s in spreads if s] for index, spreads in rows.items()}
    draw = partial(_draw_costs, context=context, kind=kind, rows=values)
    return Picture(f"cost-{kind}", title, alt, draw, table, (WIDTH, 1.0 + ROW * len(rows)), note)


def _with_std(kind: str, value: Spread) -> str:
    return cost(kind, value.mean) + (f" ± {cost(kind, value.std)}" if value.std else "")


def _draw_costs(figure: Figure, *, context: PageContext, kind: str, rows: Mapping[int, Sequence[float]]) -> None:
    axes = figure.subplots()
    widest = max((sum(values) for values in rows.values()), default=1.0) or 1.0
    for at, (index, values) in enumerate(rows.items()):
        start, colour = 0.0, context.strokes[index].hex
        for part, value in enumerate(values):
            (bar,) = axes.barh(
                at, value, height=0.56, left=start, color=colour, alpha=0.4 if part else 1.0, linewidth=0
            )
            bar.set_gid(f"series-{index}-bar")
            start += value
        axes.annotate(
            cost(kind, start), (start, at), xytext=(5, 0), textcoords="offset points", va="center", fontsize=10
        )
    rows_axis(axes, context, list(rows))
    axes.set_xlim(0, widest * 1.2)
    amounts(axes.xaxis, kind, "", 4)
    faint_grid(axes, "x")


def rows_axis(axes: Axes, context: PageContext, indices: Sequence[int]) -> None:
    """Write the names of methods beside their rows, the first on top."""
    tags = names(context.labels, TICK)
    axes.set_yticks(range(len(indices)), [tags[index] for index in indices])
    for text in axes.get_yticklabels():
        text.set_color(LIGHT["ink"])
    axes.set_ylim(len(indices) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def held(context: PageContext) -> Picture | None:
    """Draw the clients kept out of training: before and after a few private steps."""
    rows = {}
    tail = "" if context.classes else "_rmse"
    for index in range(len(context.labels)):
        before, after = context.score(index, f"heldout{tail}"), context.score(index, f"heldout_adapted{tail}")
        if before is not None and after is not None:
            rows[index] = (before.mean, after.mean)
    if not rows:
        return None
    keys = [key for word in ("heldout", "heldout_adapted", "heldout_own") if context.has(key := word + tail)]
    title = "Clients kept out of training, before and after a few private steps"
    best = max(rows, key=lambda p: rows[p][1] if context.findings.larger else -rows[p][1])
    alt = f"{title}: best after them is {context.names[best]}, from {score(rows[best][0])} to {score(rows[best][1])}."
    cells = [
        [
            data_table.text_cell(context.names[p], context.labels[p], series=p),
            *(data_table.number_cell(spread(s := context.score(p, key)), s.mean if s else None) for key in keys),
        ]
        for p in rows
    ]
    table = DataTable(title, [Head("method", words=True), *(Head(head(key), score_label(key)) for key in keys)], cells)
    draw = partial(_draw_held, context=context, rows=rows)
    note = "Hollow: the model as received; filled: after the private steps (new_clients.steps)."
    return Picture("heldout", title, alt, draw, table, (WIDTH, 1.0 + ROW * len(rows)), note)


def _draw_held(figure: Figure, *, context: PageContext, rows: Mapping[int, tuple[float, float]]) -> None:
    axes = figure.subplots()
    for at, (index, (before, after)) in enumerate(rows.items()):
        colour = context.strokes[index].hex
        axes.annotate(
            "",
            (after, at),
            (before, at),
            arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "shrinkA": 4, "shrinkB": 5},
        )
        axes.plot(
            [before],
            [at],
            "o",
            color=colour,
            markerfacecolor=LIGHT["card"],
            markersize=8,
            markeredgewidth=1.8,
            gid=f"series-{index}-before",
        )
        axes.plot([after], [at], "o", color=colour, markersize=8, gid=f"series-{index}-after")
    rows_axis(axes, context, list(rows))
    axes.set_xlabel("accuracy" if context.classes else "root of the mean squared error")
    axes.margins(x=0.08)
    faint_grid(axes, "x")
