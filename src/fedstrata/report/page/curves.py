"""Draw scores against rounds, bytes, FLOPs and seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from fedstrata.report.page import data_table
from fedstrata.report.page.context import PageContext
from fedstrata.report.page.curve_data import AXES, Curve, curve
from fedstrata.report.page.data_table import Cell, DataTable, Head
from fedstrata.report.page.drawing import Picture, amounts, faint_grid, level, line
from fedstrata.report.page.text import cost, counted, score

ROWS = 20  # of the table behind a picture; rounds.csv has all
CLIENTS = ("personal", "shared_on_clients", "validation")
SHOWN: Mapping[str, tuple[str, str]] = {
    "accuracy": ("accuracy", "Accuracy of the shared model"),
    "rmse": ("root of the mean squared error", "Error of the shared model"),
    "shared_on_clients": ("score on clients' own tests", "The shared model on clients' own tests, mean over clients"),
    "personal": ("score on clients' own tests", "Personal models, mean over clients"),
    "validation": ("score on validation data", "On clients' validation data, which choose the round"),
    "loss": ("training loss", "Training loss"),
}
"""Key of a round -> axis, title. Accuracy and error are on the server's test set."""


def curve_pictures(context: PageContext) -> dict[str, list[Picture]]:
    """Draw pictures by horizontal axis; an axis on which nothing was spent is left out."""
    by_axis: dict[str, list[Picture]] = {}
    for axis in AXES:
        pictures = [
            _picture(context, key, axis, curves)
            for key in _keys(context, axis)
            if (curves := _curves(context, key, axis))
        ]
        if pictures:
            by_axis[axis] = pictures
    return by_axis


def _keys(context: PageContext, axis: str) -> list[str]:
    """List the scores to draw: the server's test, or else clients' tests; personal models; loss only by rounds."""
    rows = [row for runs in context.runs for run in runs for row in run.rounds]
    main = "accuracy" if context.classes else "rmse"
    keys = [main if any(_has(row, main) for row in rows) else "shared_on_clients", "personal"]
    return [*keys, "validation", "loss"] if axis == "rounds" else keys


def _has(row: Mapping[str, object], key: str) -> bool:
    metrics = row.get("metrics")
    return row.get(key) is not None or (isinstance(metrics, Mapping) and metrics.get(key) is not None)


def _curves(context: PageContext, key: str, axis: str) -> dict[int, Curve]:
    sign = -1.0 if key in CLIENTS and not context.classes else 1.0
    all_curves = {index: curve(runs, key, axis, sign) for index, runs in enumerate(context.runs)}
    kept = {index: c for index, c in all_curves.items() if c is not None}
    return kept if any(max(c.x) > 0 for c in kept.values()) else {}


def _picture(context: PageContext, key: str, axis: str, curves: Mapping[int, Curve]) -> Picture:
    what, title = SHOWN[key]
    if key in CLIENTS:
        what = "accuracy" if context.classes else SHOWN["rmse"][0]
    return Picture(
        name=f"{key.replace('_', '-')}-by-{axis}",
        title=title,
        alt=_alt(context, title, axis, curves),
        draw=partial(_draw, context=context, key=key, axis=axis, curves=curves, what=what),
        table=_table(context, f"{title}, against {AXES[axis]}", axis, curves),
        note=_note(axis, curves, _ceiling(key, curves)),
        key=tuple(curves),
    )


def _draw(figure: Figure, *, context: PageContext, key: str, axis: str, curves: Mapping[int, Curve], what: str) -> None:
    axes = figure.subplots()
    for index, whole in curves.items():
        thin = whole.thin()
        line(axes, index, context.strokes[index], thin.x, thin.y, thin.std)
    if context.classes and key != "loss" and context.findings.chance is not None:
        level(axes, context.findings.chance, "chance")
    for score_key, target in context.findings.targets.items() if context.has_target else ():
        if score_key.startswith("personal") == (key == "personal") and key not in ("loss", "validation"):
            level(axes, target, "target")
    axes.set_ylabel(what)
    axes.margins(x=0.02)
    if (top := _ceiling(key, curves)) is not None:
        axes.set_ylim(0, top)
    amounts(axes.xaxis, axis, AXES[axis])
    faint_grid(axes)


def _ceiling(key: str, curves: Mapping[int, Curve]) -> float | None:
    """Return the upper limit of a picture of losses, so one that diverged does not flatten all others.

    None where none has.
    """
    if key not in ("loss", "rmse"):
        return None
    values = sorted(y for c in curves.values() for y in c.y)
    usual = values[len(values) // 2]
    return 5 * usual if values[-1] > 25 * usual > 0 else None


def _note(axis: str, curves: Mapping[int, Curve], top: float | None) -> str:
    several = any(c.seeds > 1 for c in curves.values())
    parts = ["Line: mean over seeds; band: one standard deviation each way." if several else "One seed: no band."]
    if axis != "rounds" and several:
        parts.append("The horizontal position is the mean over seeds of what had been spent by that round.")
    if any(c.longest > c.rounds[-1] for c in curves.values()):
        parts.append("A line ends with the last round that all of its seeds reached.")
    if top is not None:
        parts.append(f"Values above {score(top)} are outside the picture; its table has them.")
    return " ".join(parts)


def _alt(context: PageContext, title: str, axis: str, curves: Mapping[int, Curve]) -> str:
    ends = sorted((c.y[-1], index) for index, c in curves.items())
    if len(ends) == 1:
        value, index = ends[0]
        only = curves[index]
        return (
            f"{title} against {AXES[axis]}: from {score(only.y[0])} to {score(value)} after"
            f" {counted(only.rounds[-1], 'round')}."
        )
    (low, worst), (high, best) = ends[0], ends[-1]
    return (
        f"{title} against {AXES[axis]}, {len(ends)} methods: at their ends from {score(low)} ({context.names[worst]}) "
        f"to {score(high)} ({context.names[best]})."
    )


def _table(context: PageContext, caption: str, axis: str, curves: Mapping[int, Curve]) -> DataTable:
    rounds = sorted(set().union(*(c.rounds for c in curves.values())))
    if len(rounds) > ROWS:
        rounds = [rounds[round(k * (len(rounds) - 1) / (ROWS - 1))] for k in range(ROWS)]
    rows = [
        [data_table.number_cell(str(r), float(r)), *(cell for c in curves.values() for cell in _cells(c, r, axis))]
        for r in rounds
    ]
    heads = [Head("round")]
    for index in curves:
        heads += (
            [Head(context.names[index])]
            if axis == "rounds"
            else [Head(f"{context.names[index]}: {axis}"), Head(context.names[index])]
        )
    return DataTable(caption, heads, rows, sort=False)


def _cells(one: Curve, at: int, axis: str) -> Sequence[Cell]:
    if at not in one.rounds:
        return [data_table.number_cell("-", None)] * (1 if axis == "rounds" else 2)
    k = list(one.rounds).index(at)
    text = score(one.y[k]) + (f" ± {score(one.std[k])}" if one.std is not None else "")
    setting_text = data_table.number_cell(text, one.y[k])
    return (
        [setting_text] if axis == "rounds" else [data_table.number_cell(cost(axis, one.x[k]), one.x[k]), setting_text]
    )
