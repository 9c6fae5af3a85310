"""Build the tables of a page."""

from __future__ import annotations

from collections.abc import Sequence

from fedstrata.analysis.records import Difference, Line, Spread
from fedstrata.analysis.scores import score_label
from fedstrata.report.page import data_table
from fedstrata.report.page.context import HEADS, PageContext, head
from fedstrata.report.page.data_table import Cell, DataTable, Head
from fedstrata.report.page.text import cost, score, signed, spread

TONES = {"better": "good", "worse": "bad"}
NONE = data_table.number_cell("-", None)


def name(context: PageContext, index: int) -> Cell:
    """Return a row's head: the method with its stroke."""
    return data_table.text_cell(context.names[index], context.labels[index], series=index)


def headline(context: PageContext) -> DataTable:
    """Build the table at the top: headline scores, differences to the baseline, costs."""
    keys = [key for key in context.findings.headline if context.has(key)]
    extra = [
        key
        for key in ("personal_worst10", "personal_worst10_rmse", "heldout_adapted", "heldout_adapted_rmse")
        if context.has(key) and key not in keys
    ]
    heads = [
        Head(
            "method", "the baseline is named in the sentence above" if context.baseline is not None else "", words=True
        )
    ]
    rows: list[list[Cell]] = [[name(context, index)] for index in range(len(context.labels))]
    for key in keys:
        heads.append(Head(head(key), score_label(key)))
        _add(rows, [_score(context, index, key, best=True) for index in range(len(rows))])
        if context.baseline is not None and any(line is not None and key in line.differences for line in context.lines):
            heads += _difference_heads(context)
            for index in range(len(rows)):
                rows[index] += _difference(context, index, key)
    for key in extra:
        heads.append(Head(head(key), score_label(key)))
        _add(rows, [_score(context, index, key, best=True) for index in range(len(rows))])
    for kind in ("rounds", "bytes", "flops", "seconds"):
        if any(context.cost(index, kind) is not None for index in range(len(rows))):
            heads.append(Head(COSTS[kind][0], COSTS[kind][1]))
            _add(rows, [_cost(context, index, kind) for index in range(len(rows))])
    return DataTable(
        "Methods, their scores, differences to the baseline and costs" if not context.alone else "Scores and costs",
        heads,
        rows,
    )


COSTS = {
    "rounds": ("rounds", "rounds trained, mean over seeds"),
    "bytes_up": ("up", "payload from clients to the server, a run"),
    "bytes_down": ("down", "payload from the server to clients, a run"),
    "bytes": ("bytes", "payload up and down, a run"),
    "flops": ("training", "floating-point operations of clients' training, a run"),
    "seconds": ("time", "seconds of training rounds on this machine, without evaluation"),
    "eval_seconds": ("evaluation", "seconds of evaluation on this machine"),
}


def _add(rows: Sequence[list[Cell]], cells: Sequence[Cell]) -> None:
    for row, cell in zip(rows, cells, strict=True):
        row.append(cell)


def _score(context: PageContext, index: int, key: str, *, best: bool = False) -> Cell:
    value = context.score(index, key)
    if value is None:
        return NONE
    leads = best and not context.alone and context.best(key, larger=context.findings.larger) == index
    return data_table.number_cell(spread(value), value.mean, "best" if leads else "", _seeds(value))


def _seeds(value: Spread) -> str:
    return f"by seed: {', '.join(score(v, 4) for v in value.values)}" if value.n > 1 else ""


def _cost(context: PageContext, index: int, kind: str) -> Cell:
    value = context.cost(index, kind)
    return NONE if value is None else data_table.number_cell(cost(kind, value.mean), value.mean)


def _difference_heads(context: PageContext) -> list[Head]:
    assert context.baseline is not None
    base = context.names[context.baseline]
    return [
        Head("to baseline", f"paired difference to {base} over seeds, with its 95 % interval"),
        Head(
            "verdict",
            "better or worse only where p, corrected for the number of methods (Holm), is under 0.05",
            words=True,
        ),
    ]


def _difference(context: PageContext, index: int, key: str) -> list[Cell]:
    line = context.lines[index]
    if index == context.baseline:
        return [data_table.number_cell("-", None, "muted"), data_table.text_cell("baseline", tone="muted")]
    difference = line.differences.get(key) if line is not None else None
    if difference is None or line is None:
        return [NONE, data_table.text_cell("no run" if line is None else "-", tone="muted")]
    verdict = difference.verdict if line.informative else "not informative"
    tip = (
        ""
        if difference.corrected is None
        else f"p {difference.p:.3g}, corrected {difference.corrected:.3g}"
        if difference.p is not None
        else ""
    )
    return [
        interval(difference),
        (
            data_table.text_cell(verdict, tone=TONES.get(verdict, "muted"))
            if not tip
            else Cell(verdict, None, tip, TONES.get(verdict, "muted"), words=True)
        ),
    ]


def interval(difference: Difference) -> Cell:
    """Return a difference with its 95 % interval."""
    under = "" if difference.low is None else f"[{signed(difference.low)}, {signed(difference.high)}]"
    return Cell(signed(difference.mean), difference.mean, under=under)


# ---- further tables


def margins(context: PageContext) -> DataTable | None:
    """Build the table of each method's margin over the best other method."""
    keys = [
        key
        for key in context.findings.headline
        if any(line is not None and key in line.margins for line in context.lines)
    ]
    if context.alone or not keys:
        return None
    heads = [Head("method", words=True)]
    rows = [[name(context, index)] for index in range(len(context.labels))]
    for key in keys:
        heads += [
            Head(head(key), score_label(key)),
            Head("best other", "the best of the other methods by this score", words=True),
        ]
        for index, line in enumerate(context.lines):
            margin = line.margins.get(key) if line is not None else None
            rows[index] += (
                [NONE, data_table.text_cell("-")]
                if margin is None
                else [interval(margin[1]), data_table.text_cell(context.name_of(margin[0]), margin[0])]
            )
    return DataTable("Margin over the best other method, paired over seeds, with its 95 % interval", heads, rows)


SHARED, PERSONAL, UNSEEN = "The shared model", "Personal models", "Clients kept out of training"


def score_tables(context: PageContext) -> dict[str, DataTable]:
    """Build the tables of all scores that any method has, by the model that they belong to."""
    keys = [key for key in HEADS if context.has(key)]
    keys += sorted({key for line in context.lines if line is not None for key in line.scores} - set(HEADS))
    kinds: dict[str, list[str]] = {SHARED: [], PERSONAL: [], UNSEEN: []}
    for key in keys:
        kinds[PERSONAL if key.startswith("personal") else UNSEEN if key.startswith("heldout") else SHARED].append(key)
    return {title: _scores(context, title, some) for title, some in kinds.items() if some}


def _scores(context: PageContext, title: str, keys: Sequence[str]) -> DataTable:
    heads = [Head("method", words=True), *(Head(head(key), score_label(key)) for key in keys)]
    rows = [
        [name(context, index), *(_score(context, index, key) for key in keys)] for index in range(len(context.labels))
    ]
    return DataTable(
        f"{title}: mean ± standard deviation over seeds" if len(context.comparison.seeds) > 1 else title, heads, rows
    )


def cost_table(context: PageContext) -> DataTable | None:
    """Build the table of all costs, with their spread."""
    keys = [key for key in COSTS if any(context.cost(index, key) is not None for index in range(len(context.labels)))]
    if not keys:
        return None
    heads = [Head("method", words=True), *(Head(COSTS[key][0], COSTS[key][1]) for key in keys)]
    return DataTable(
        "Costs of a run, mean over seeds",
        heads,
        [[name(context, p), *(_cost(context, p, key) for key in keys)] for p in range(len(context.labels))],
    )


def target_table(context: PageContext) -> DataTable | None:
    """Build the table of the costs to reach the target; for one method alone only where the target was set."""
    if (
        context.findings.target is None
        or not context.has_target
        or not any(line is not None and line.target is not None for line in context.lines)
    ):
        return None
    heads = [Head("method", words=True), Head("seeds", "how many seeds reached it, of how many")]
    heads += [
        Head(word, f"{word} until the target, over the seeds that reached it")
        for word in ("rounds", "bytes", "training", "time")
    ]
    rows = [[name(context, index), *_target(line)] for index, line in enumerate(context.lines)]
    return DataTable(f"Costs to reach {score(context.findings.target)}", heads, rows)


def _target(line: Line | None) -> list[Cell]:
    reached = line.target if line is not None else None
    if reached is None:
        return [NONE] * 5
    parts = {"rounds": reached.rounds, "bytes": reached.bytes, "flops": reached.flops, "seconds": reached.seconds}
    cells = [
        NONE if value is None else data_table.number_cell(cost(kind, value.mean), value.mean, tip=_range(kind, value))
        for kind, value in parts.items()
    ]
    return [data_table.number_cell(f"{reached.seeds[0]} of {reached.seeds[1]}", reached.seeds[0]), *cells]


def _range(kind: str, value: Spread) -> str:
    return f"{cost(kind, min(value.values))} to {cost(kind, max(value.values))}" if value.n > 1 else ""


STABILITY = {
    "std": (
        "spread at the end",
        "standard deviation of the score over the last tenth of the evaluations, at least three; mean over seeds",
    ),
    "drop": ("largest drop", "largest loss between two evaluations in any seed"),
    "personal_std": ("personal: spread at the end", "the same of personal models"),
    "personal_drop": ("personal: largest drop", "the same of personal models"),
}


def stability(context: PageContext) -> DataTable | None:
    """Build the table of each curve's stability."""
    keys = list(
        dict.fromkeys(
            key for line in context.lines if line is not None for key, v in line.stability.items() if v is not None
        )
    )
    if not keys:
        return None
    headings = [STABILITY.get(key, (key.replace("_", " "), "")) for key in keys]
    rows = []
    for index, line in enumerate(context.lines):
        values = [line.stability.get(key) if line is not None else None for key in keys]
        rows.append([name(context, index), *(data_table.number_cell(score(v, 4), v) for v in values)])
    return DataTable(
        "Stability of the curves", [Head("method", words=True), *(Head(text, tip) for text, tip in headings)], rows
    )
