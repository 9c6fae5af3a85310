"""Pictures of what accuracy costs: fronts against bytes and FLOPs, bars of costs, differences to the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedstrata.analysis.records import Difference, Spread
from fedstrata.analysis.scores import words
from fedstrata.report.page import data_table
from fedstrata.report.page.context import Scene, head
from fedstrata.report.page.data_table import Grid, Head
from fedstrata.report.page.drawing import WIDTH, Picture, amounts, faint_grid
from fedstrata.report.page.text import cost, listed, names, score, signed, spread
from fedstrata.report.page.theme import LIGHT

ROW = 0.34  # inches of a method's row
TICK = 24  # letters of a name beside a row
DIRECT = 10  # methods up to which a front's points carry their names
PRICES = {"bytes": "bytes sent, up and down", "flops": "clients' training"}


# ---- fronts
# ---------------------------------------------------------------------------------------------------------------------------------


def fronts(scene: Scene) -> list[Picture]:
    """The headline score against bytes and against FLOPs; nothing for one method alone."""
    if scene.alone:
        return []
    return [
        picture
        for key in scene.findings.headline
        for kind in PRICES
        if (picture := _front(scene, kind, key)) is not None
    ]


def _front(scene: Scene, kind: str, key: str) -> Picture | None:
    points = {}
    for place in range(len(scene.labels)):
        price, value, line = scene.cost(place, kind), scene.score(place, key), scene.lines[place]
        if (
            price is not None
            and value is not None
            and not (line is not None and line.unused and not key.startswith("personal"))
        ):
            points[place] = (price.mean, value.mean)
    if len(points) < 2:
        return None
    on = [
        place
        for place in points
        if (line := scene.lines[place]) is not None and kind in line.fronts.get(key, line.front)
    ]
    said = [
        f"{scene.names[p]} ({cost(kind, points[p][0])}, {score(points[p][1])})"
        for p in sorted(on, key=lambda p: points[p])
    ]
    rows = [
        [
            data_table.word(scene.names[p], scene.labels[p], series=p),
            data_table.figure(cost(kind, x), x),
            data_table.figure(score(y), y),
            data_table.word("yes" if p in on else "no"),
        ]
        for p, (x, y) in points.items()
    ]
    title = f"{head(key).capitalize() if scene.classes else head(key)} against {PRICES[kind]}"
    heads = [Head("method", words=True), Head(kind), Head(head(key)), Head("on the front", words=True)]
    return Picture(
        name=f"front-{key.replace('_', '-')}-{kind}",
        title=title,
        alt=(
            f"{title}; no method is both better and cheaper than these: {listed(said)}."
            if said
            else f"{title}, {len(points)} methods."
        ),
        draw=partial(_draw_front, scene=scene, kind=kind, key=key, points=points, on=on),
        table=Grid(title, heads, rows),
        note=_front_note(scene, key),
        key=tuple(points),
    )


def _front_note(scene: Scene, key: str) -> str:
    out = [scene.names[place] for place, line in enumerate(scene.lines) if line is not None and line.unused]
    note = "Filled, on the line: no other method is better and cheaper. Hollow: some other method is."
    return (
        note
        if key.startswith("personal") or not out
        else f"{note} Left out, as nobody uses the shared model: {listed(out)}."
    )


def _draw_front(
    figure: Figure, *, scene: Scene, kind: str, key: str, points: Mapping[int, tuple[float, float]], on: Sequence[int]
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
    for place, (x, y) in points.items():
        stroke, filled = scene.strokes[place], place in on
        axes.plot(
            [x], [y], stroke.marker, color=stroke.hex, markersize=9 if filled else 8, markerfacecolor=stroke.hex if filled else "none",
            markeredgewidth=1.8, gid=f"series-{place}-dot",
        )  # fmt: skip
        _whisker(axes, scene, place, key, x)
    axes.margins(x=0.16, y=0.16)
    if len(points) <= DIRECT:
        _direct(axes, scene, points)
    axes.set_ylabel("accuracy" if scene.classes else head(key))
    amounts(axes.xaxis, kind, PRICES[kind])
    faint_grid(axes)


def _whisker(axes: Axes, scene: Scene, place: int, key: str, x: float) -> None:
    value = scene.score(place, key)
    if value is not None and value.std:
        low, high = value.mean - value.std, value.mean + value.std
        axes.plot([x, x], [low, high], color=scene.strokes[place].hex, linewidth=1.2, gid=f"series-{place}-spread")


def _direct(axes: Axes, scene: Scene, points: Mapping[int, tuple[float, float]]) -> None:
    """Names beside their points, moved apart where they would lie on each other.

    A thin line leads from a point to a name that was moved.
    """
    tags = names(scene.labels, 18)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    spots = {place: ((x - left) / (right - left), (y - bottom) / (top - bottom)) for place, (x, y) in points.items()}
    heights = _apart(spots)
    for place, (across, up) in spots.items():
        side = across > 0.6
        moved = abs(heights[place] - up) > 0.02
        leader = {"arrowstyle": "-", "color": LIGHT["edge"], "linewidth": 0.7, "shrinkA": 0, "shrinkB": 5}
        beside = (across + (-0.06 if side else 0.06), heights[place])
        axes.annotate(
            tags[place], (across, up), beside, "axes fraction", "axes fraction", leader if moved else None, annotation_clip=False, fontsize=10,
            ha="right" if side else "left", va="center", gid=f"series-{place}-name",
        )  # fmt: skip


def _apart(spots: Mapping[int, tuple[float, float]], gap: float = 0.075) -> dict[int, float]:
    """Heights of names, in shares of the axes: near their points, and none within ``gap`` of another that stands beside
    it.
    """
    heights = {place: up for place, (_, up) in spots.items()}
    order = sorted(spots, key=lambda place: (spots[place][1], place))
    for _ in range(200):
        for k, low in enumerate(order):
            for high in order[k + 1 :]:
                short_of = gap - (heights[high] - heights[low])
                if short_of > 0 and abs(spots[low][0] - spots[high][0]) < 0.45:
                    heights[low] -= short_of / 2
                    heights[high] += short_of / 2
    return heights


# ---- differences
# ----------------------------------------------------------------------------------------------------------------------------


def differences(scene: Scene) -> list[Picture]:
    """Paired differences to the baseline with their intervals, a picture a headline score."""
    found = []
    for key in scene.findings.headline:
        rows = {
            place: line.differences[key]
            for place, line in enumerate(scene.lines)
            if line is not None and key in line.differences and place != scene.baseline
        }
        if rows and scene.baseline is not None:
            found.append(_differences(scene, key, rows))
    return found


VERDICT = {"better": "good", "worse": "bad"}


def _differences(scene: Scene, key: str, rows: Mapping[int, Difference]) -> Picture:
    assert scene.baseline is not None
    base = scene.names[scene.baseline]
    title = f"Difference to {base}: {head(key)}"
    ends = sorted((d.mean, place) for place, d in rows.items())
    shown = [scene.names[p] for p, d in rows.items() if d.verdict == "better"]
    said = f"shown to be better: {listed(shown)}" if shown else "none is shown to be better"
    alt = (
        f"{title}: from {signed(ends[0][0])} ({scene.names[ends[0][1]]}) to {signed(ends[-1][0])}"
        f" ({scene.names[ends[-1][1]]}); {said}."
    )
    table = Grid(
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
                data_table.word(scene.names[p], scene.labels[p], series=p),
                data_table.figure(signed(d.mean), d.mean),
                data_table.figure("-" if d.low is None else f"{signed(d.low)} to {signed(d.high)}", d.low),
                data_table.figure("-" if d.corrected is None else f"{d.corrected:.3g}", d.corrected),
                data_table.word(d.verdict, tone=VERDICT.get(d.verdict, "")),
            ]
            for p, d in rows.items()
        ],
    )
    note = (
        f"Mean over seeds of the paired difference in {words(key)}, with its 95 % interval. Filled: shown to differ,"
        " corrected for many methods."
    )
    return Picture(
        f"difference-{key.replace('_', '-')}", title, alt, partial(_draw_differences, scene=scene, rows=rows, base=base), table,
        (WIDTH, 1.0 + ROW * len(rows)), note, tuple(rows),
    )  # fmt: skip


def _draw_differences(figure: Figure, *, scene: Scene, rows: Mapping[int, Difference], base: str) -> None:
    axes = figure.subplots()
    axes.axvline(0, color=LIGHT["edge"], linewidth=1.2)
    for at, (place, d) in enumerate(rows.items()):
        stroke = scene.strokes[place]
        if d.low is not None and d.high is not None:
            axes.plot(
                [d.low, d.high],
                [at, at],
                color=stroke.hex,
                linewidth=2.2,
                solid_capstyle="butt",
                gid=f"series-{place}-interval",
            )
        style: dict[str, Any] = {
            "markersize": 8,
            "markerfacecolor": stroke.hex if d.verdict in VERDICT else LIGHT["card"],
            "markeredgewidth": 1.8,
        }
        axes.plot([d.mean], [at], stroke.marker, color=stroke.hex, gid=f"series-{place}-mean", **style)
    rows_axis(axes, scene, list(rows))
    amounts(axes.xaxis, "", f"difference to {base}")
    axes.margins(x=0.08)
    faint_grid(axes, "x")


# ---- costs
# ----------------------------------------------------------------------------------------------------------------------------------

COSTS = {"bytes": "Bytes sent", "flops": "Clients' training", "seconds": "Training time"}


def costs(scene: Scene) -> list[Picture]:
    """Bars of bytes up and down, of FLOPs and of seconds."""
    return [picture for kind in COSTS if (picture := _costs(scene, kind)) is not None]


def _costs(scene: Scene, kind: str) -> Picture | None:
    parts = ("bytes_up", "bytes_down") if kind == "bytes" else (kind,)
    rows = {
        place: [scene.cost(place, part) for part in parts]
        for place in range(len(scene.labels))
        if all(scene.cost(place, part) is not None for part in parts)
    }
    if not rows:
        return None
    totals = sorted((sum(s.mean for s in spreads if s), place) for place, spreads in rows.items())
    title = COSTS[kind]
    (low, least), (high, most) = totals[0], totals[-1]
    alt = f"{title} by a run: {cost(kind, low)}."
    if len(totals) > 1:
        alt = (
            f"{title} by a run: from {cost(kind, low)} ({scene.names[least]}) to {cost(kind, high)}"
            f" ({scene.names[most]})."
        )
    heads = {"bytes_up": "up", "bytes_down": "down"}
    table = Grid(
        title,
        [Head("method", words=True), *(Head(heads.get(part, kind)) for part in parts)],
        [
            [
                data_table.word(scene.names[p], scene.labels[p], series=p),
                *(data_table.figure(_with_std(kind, s), s.mean) for s in spreads if s),
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
    values = {place: [s.mean for s in spreads if s] for place, spreads in rows.items()}
    draw = partial(_draw_costs, scene=scene, kind=kind, rows=values)
    return Picture(f"cost-{kind}", title, alt, draw, table, (WIDTH, 1.0 + ROW * len(rows)), note)


def _with_std(kind: str, value: Spread) -> str:
    return cost(kind, value.mean) + (f" ± {cost(kind, value.std)}" if value.std else "")


def _draw_costs(figure: Figure, *, scene: Scene, kind: str, rows: Mapping[int, Sequence[float]]) -> None:
    axes = figure.subplots()
    widest = max((sum(values) for values in rows.values()), default=1.0) or 1.0
    for at, (place, values) in enumerate(rows.items()):
        start, colour = 0.0, scene.strokes[place].hex
        for part, value in enumerate(values):
            (bar,) = axes.barh(
                at, value, height=0.56, left=start, color=colour, alpha=0.4 if part else 1.0, linewidth=0
            )
            bar.set_gid(f"series-{place}-bar")
            start += value
        axes.annotate(
            cost(kind, start), (start, at), xytext=(5, 0), textcoords="offset points", va="center", fontsize=10
        )
    rows_axis(axes, scene, list(rows))
    axes.set_xlim(0, widest * 1.2)
    amounts(axes.xaxis, kind, "", 4)
    faint_grid(axes, "x")


def rows_axis(axes: Axes, scene: Scene, places: Sequence[int]) -> None:
    """Names of methods beside their rows, the first on top."""
    tags = names(scene.labels, TICK)
    axes.set_yticks(range(len(places)), [tags[place] for place in places])
    for text in axes.get_yticklabels():
        text.set_color(LIGHT["ink"])
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def held(scene: Scene) -> Picture | None:
    """Clients kept out of training: before and after a few private steps."""
    rows = {}
    tail = "" if scene.classes else "_rmse"
    for place in range(len(scene.labels)):
        before, after = scene.score(place, f"heldout{tail}"), scene.score(place, f"heldout_adapted{tail}")
        if before is not None and after is not None:
            rows[place] = (before.mean, after.mean)
    if not rows:
        return None
    keys = [key for word in ("heldout", "heldout_adapted", "heldout_own") if scene.have(key := word + tail)]
    title = "Clients kept out of training, before and after a few private steps"
    best = max(rows, key=lambda p: rows[p][1] if scene.findings.larger else -rows[p][1])
    alt = f"{title}: best after them is {scene.names[best]}, from {score(rows[best][0])} to {score(rows[best][1])}."
    cells = [
        [
            data_table.word(scene.names[p], scene.labels[p], series=p),
            *(data_table.figure(spread(s := scene.score(p, key)), s.mean if s else None) for key in keys),
        ]
        for p in rows
    ]
    table = Grid(title, [Head("method", words=True), *(Head(head(key), words(key)) for key in keys)], cells)
    draw = partial(_draw_held, scene=scene, rows=rows)
    note = "Hollow: the model as received; filled: after the private steps (unseen.steps)."
    return Picture("heldout", title, alt, draw, table, (WIDTH, 1.0 + ROW * len(rows)), note)


def _draw_held(figure: Figure, *, scene: Scene, rows: Mapping[int, tuple[float, float]]) -> None:
    axes = figure.subplots()
    for at, (place, (before, after)) in enumerate(rows.items()):
        colour = scene.strokes[place].hex
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
            gid=f"series-{place}-before",
        )
        axes.plot([after], [at], "o", color=colour, markersize=8, gid=f"series-{place}-after")
    rows_axis(axes, scene, list(rows))
    axes.set_xlabel("accuracy" if scene.classes else "root of the mean squared error")
    axes.margins(x=0.08)
    faint_grid(axes, "x")
