"""The tables of a page."""

from __future__ import annotations

from collections.abc import Sequence

from fedstrata.analysis.records import Difference, Line, Spread
from fedstrata.analysis.scores import words
from fedstrata.report.page import data_table
from fedstrata.report.page.context import HEADS, Scene, head
from fedstrata.report.page.data_table import Cell, Grid, Head
from fedstrata.report.page.text import cost, score, signed, spread

TONES = {"better": "good", "worse": "bad"}
NONE = data_table.figure("-", None)


def name(scene: Scene, place: int) -> Cell:
    """A row's head: the method with its stroke."""
    return data_table.word(scene.names[place], scene.labels[place], series=place)


def headline(scene: Scene) -> Grid:
    """The table at the top: scores that are answered on, differences to the baseline, costs."""
    keys = [key for key in scene.findings.headline if scene.have(key)]
    extra = [
        key
        for key in ("personal_worst10", "personal_worst10_rmse", "heldout_adapted", "heldout_adapted_rmse")
        if scene.have(key) and key not in keys
    ]
    heads = [
        Head("method", "the baseline is named in the sentence above" if scene.baseline is not None else "", words=True)
    ]
    rows: list[list[Cell]] = [[name(scene, place)] for place in range(len(scene.labels))]
    for key in keys:
        heads.append(Head(head(key), words(key)))
        _add(rows, [_score(scene, place, key, best=True) for place in range(len(rows))])
        if scene.baseline is not None and any(line is not None and key in line.differences for line in scene.lines):
            heads += _difference_heads(scene)
            for place in range(len(rows)):
                rows[place] += _difference(scene, place, key)
    for key in extra:
        heads.append(Head(head(key), words(key)))
        _add(rows, [_score(scene, place, key, best=True) for place in range(len(rows))])
    for kind in ("rounds", "bytes", "flops", "seconds"):
        if any(scene.cost(place, kind) is not None for place in range(len(rows))):
            heads.append(Head(COSTS[kind][0], COSTS[kind][1]))
            _add(rows, [_cost(scene, place, kind) for place in range(len(rows))])
    return Grid(
        "Methods, their scores, differences to the baseline and costs" if not scene.alone else "Scores and costs",
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


def _score(scene: Scene, place: int, key: str, *, best: bool = False) -> Cell:
    found = scene.score(place, key)
    if found is None:
        return NONE
    leads = best and not scene.alone and scene.best(key, larger=scene.findings.larger) == place
    return data_table.figure(spread(found), found.mean, "best" if leads else "", _seeds(found))


def _seeds(value: Spread) -> str:
    return f"by seed: {', '.join(score(v, 4) for v in value.values)}" if value.n > 1 else ""


def _cost(scene: Scene, place: int, kind: str) -> Cell:
    found = scene.cost(place, kind)
    return NONE if found is None else data_table.figure(cost(kind, found.mean), found.mean)


def _difference_heads(scene: Scene) -> list[Head]:
    assert scene.baseline is not None
    base = scene.names[scene.baseline]
    return [
        Head("to baseline", f"paired difference to {base} over seeds, with its 95 % interval"),
        Head(
            "verdict",
            "better or worse only where p, corrected for the number of methods (Holm), is under 0.05",
            words=True,
        ),
    ]


def _difference(scene: Scene, place: int, key: str) -> list[Cell]:
    line = scene.lines[place]
    if place == scene.baseline:
        return [data_table.figure("-", None, "muted"), data_table.word("baseline", tone="muted")]
    found = line.differences.get(key) if line is not None else None
    if found is None or line is None:
        return [NONE, data_table.word("no run" if line is None else "-", tone="muted")]
    verdict = found.verdict if line.informative else "not informative"
    tip = (
        ""
        if found.corrected is None
        else f"p {found.p:.3g}, corrected {found.corrected:.3g}"
        if found.p is not None
        else ""
    )
    return [
        interval(found),
        (
            data_table.word(verdict, tone=TONES.get(verdict, "muted"))
            if not tip
            else Cell(verdict, None, tip, TONES.get(verdict, "muted"), words=True)
        ),
    ]


def interval(found: Difference) -> Cell:
    """A difference with its 95 % interval."""
    under = "" if found.low is None else f"[{signed(found.low)}, {signed(found.high)}]"
    return Cell(signed(found.mean), found.mean, under=under)


# ---- further tables
# -------------------------------------------------------------------------------------------------------------------------


def margins(scene: Scene) -> Grid | None:
    """How far each method is ahead of the best of the others."""
    keys = [
        key for key in scene.findings.headline if any(line is not None and key in line.margins for line in scene.lines)
    ]
    if scene.alone or not keys:
        return None
    heads = [Head("method", words=True)]
    rows = [[name(scene, place)] for place in range(len(scene.labels))]
    for key in keys:
        heads += [
            Head(head(key), words(key)),
            Head("best other", "the best of the other methods by this score", words=True),
        ]
        for place, line in enumerate(scene.lines):
            found = line.margins.get(key) if line is not None else None
            rows[place] += (
                [NONE, data_table.word("-")]
                if found is None
                else [interval(found[1]), data_table.word(scene.name_of(found[0]), found[0])]
            )
    return Grid("Margin over the best other method, paired over seeds, with its 95 % interval", heads, rows)


SHARED, PERSONAL, UNSEEN = "The shared model", "Personal models", "Clients kept out of training"


def score_tables(scene: Scene) -> dict[str, Grid]:
    """All scores that any method has, by the model that they are of."""
    keys = [key for key in HEADS if scene.have(key)]
    keys += sorted({key for line in scene.lines if line is not None for key in line.scores} - set(HEADS))
    kinds: dict[str, list[str]] = {SHARED: [], PERSONAL: [], UNSEEN: []}
    for key in keys:
        kinds[PERSONAL if key.startswith("personal") else UNSEEN if key.startswith("heldout") else SHARED].append(key)
    return {title: _scores(scene, title, some) for title, some in kinds.items() if some}


def _scores(scene: Scene, title: str, keys: Sequence[str]) -> Grid:
    heads = [Head("method", words=True), *(Head(head(key), words(key)) for key in keys)]
    rows = [[name(scene, place), *(_score(scene, place, key) for key in keys)] for place in range(len(scene.labels))]
    return Grid(
        f"{title}: mean ± standard deviation over seeds" if len(scene.comparison.seeds) > 1 else title, heads, rows
    )


def cost_table(scene: Scene) -> Grid | None:
    """All costs, with their spread."""
    keys = [key for key in COSTS if any(scene.cost(place, key) is not None for place in range(len(scene.labels)))]
    if not keys:
        return None
    heads = [Head("method", words=True), *(Head(COSTS[key][0], COSTS[key][1]) for key in keys)]
    return Grid(
        "Costs of a run, mean over seeds",
        heads,
        [[name(scene, p), *(_cost(scene, p, key) for key in keys)] for p in range(len(scene.labels))],
    )


def target_table(scene: Scene) -> Grid | None:
    """What it takes to reach the target; for one method alone only where somebody set it."""
    if (
        scene.findings.target is None
        or not scene.aimed
        or not any(line is not None and line.target is not None for line in scene.lines)
    ):
        return None
    heads = [Head("method", words=True), Head("seeds", "how many seeds reached it, of how many")]
    heads += [
        Head(word, f"{word} until the target, over the seeds that reached it")
        for word in ("rounds", "bytes", "training", "time")
    ]
    rows = [[name(scene, place), *_target(line)] for place, line in enumerate(scene.lines)]
    return Grid(f"The way to {score(scene.findings.target)}", heads, rows)


def _target(line: Line | None) -> list[Cell]:
    reached = line.target if line is not None else None
    if reached is None:
        return [NONE] * 5
    parts = {"rounds": reached.rounds, "bytes": reached.bytes, "flops": reached.flops, "seconds": reached.seconds}
    cells = [
        NONE if found is None else data_table.figure(cost(kind, found.mean), found.mean, tip=_range(kind, found))
        for kind, found in parts.items()
    ]
    return [data_table.figure(f"{reached.seeds[0]} of {reached.seeds[1]}", reached.seeds[0]), *cells]


def _range(kind: str, found: Spread) -> str:
    return f"{cost(kind, min(found.values))} to {cost(kind, max(found.values))}" if found.n > 1 else ""


STABILITY = {
    "std": (
        "spread at the end",
        "standard deviation of the score over the last tenth of the evaluations, at least three; mean over seeds",
    ),
    "drop": ("largest drop", "largest loss between two evaluations in any seed"),
    "personal_std": ("personal: spread at the end", "the same of clients' own models"),
    "personal_drop": ("personal: largest drop", "the same of clients' own models"),
}


def stability(scene: Scene) -> Grid | None:
    """How steady each curve is."""
    keys = list(
        dict.fromkeys(
            key for line in scene.lines if line is not None for key, v in line.stability.items() if v is not None
        )
    )
    if not keys:
        return None
    said = [STABILITY.get(key, (key.replace("_", " "), "")) for key in keys]
    rows = []
    for place, line in enumerate(scene.lines):
        values = [line.stability.get(key) if line is not None else None for key in keys]
        rows.append([name(scene, place), *(data_table.figure(score(v, 4), v) for v in values)])
    return Grid(
        "How steady the curves are", [Head("method", words=True), *(Head(text, tip) for text, tip in said)], rows
    )
