"""Build the page, section by section; empty sections are left out.

Empty ones are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from fedstrata.analysis.scores import score_label
from fedstrata.diagnostics.panel import Panel
from fedstrata.report.page import data_table, reproduce, tables
from fedstrata.report.page.blocks import Block, Section, Tab, Tile
from fedstrata.report.page.clients import partition, served
from fedstrata.report.page.context import PageContext, head
from fedstrata.report.page.costs import costs, differences, fronts, held
from fedstrata.report.page.curves import curve_pictures
from fedstrata.report.page.data_table import DataTable, Head
from fedstrata.report.page.drawing import Picture
from fedstrata.report.page.panels import numbers, panel_grid, panel_picture
from fedstrata.report.page.skew import skew_table
from fedstrata.report.page.text import cost, counted, plain, score, short

TABS = {"rounds": "Rounds", "bytes": "Bytes", "flops": "FLOPs", "seconds": "Seconds"}


def sections(context: PageContext, panels: Sequence[Panel]) -> list[Section]:
    """Build all sections that have something to show, in the order of the page."""
    return _made(context, (_answer, _flags, *_drawn(panels), reproduce.section, reproduce.cite, _glossary))


def pictures(context: PageContext, panels: Sequence[Panel]) -> list[Picture]:
    """List every picture of a page, in its order."""
    blocks = [block for section in _made(context, _drawn(panels)) for block in section.blocks]
    return [
        picture for block in blocks for picture in (*block.pictures, *(p for tab in block.tabs for p in tab.pictures))
    ]


Maker: TypeAlias = Callable[[PageContext], Section | None]


def _drawn(panels: Sequence[Panel]) -> tuple[Maker, ...]:
    """Return the functions that make the sections with pictures and tables."""
    return _results, _differences, _curves, _costs, _new_clients, _data, _clients, partial(_measures, panels=panels)


def _made(context: PageContext, makers: Sequence[Maker]) -> list[Section]:
    return [section for maker in makers if (section := maker(context)) is not None]


# ---- the answer


def _answer(context: PageContext) -> Section:
    title = "What came out" if context.alone else "The answer"
    return Section(
        id="answer",
        short=title,
        title=title,
        answer=plain(context.findings.answer) or _no_answer(context),
        tiles=list(_tiles(context)),
    )


def _no_answer(context: PageContext) -> str:
    return "No run has finished." if not any(context.runs) else "There is nothing to compare."


def _tiles(context: PageContext) -> Iterator[Tile]:
    facts, comparison = context.comparison.facts, context.comparison
    more = f"{len(facts.labels)} classes" if facts.labels else facts.kind
    yield Tile(name="data", value=short(facts.name, 60), more=more)
    if facts.clients:
        yield Tile(
            name="clients",
            value=f"{facts.clients:,}",
            more=f"{facts.heldout:,} of them kept out of training" if facts.heldout else "",
        )
        yield Tile(name="partitioned by", value=short(facts.law, 60), more="")
    seeds = len(comparison.seeds)
    yield Tile(
        name="runs", value=f"{counted(len(context.labels), 'method')}, {counted(seeds, 'seed')}", more=_failed(context)
    )
    rounds = comparison.config.get("rounds")
    if rounds is not None:
        yield Tile(name="rounds", value=f"{rounds:,}", more=_budget(context))
    if context.baseline is not None:
        yield Tile(name="compared with", value=context.names[context.baseline], more="")
    if context.findings.chance is not None:
        yield Tile(name="chance", value=score(context.findings.chance), more="always the commonest class")
    if context.findings.target is not None and not context.alone:
        yield Tile(
            name="target",
            value=score(context.findings.target),
            more=score_label(context.main_score) if context.main_score else "",
        )


def _failed(context: PageContext) -> str:
    failures = len(context.comparison.failures)
    return f"{failures} failed" if failures else ""


def _budget(context: PageContext) -> str:
    budget = context.comparison.budget
    if budget is None:
        return ""
    amount = score(budget.amount) if budget.kind == "accuracy" else cost(budget.kind, budget.amount)
    return f"or {amount} of {budget.kind}, whichever came first"


def _flags(context: PageContext) -> Section | None:
    flags = [(plain(flag.code).replace("-", " "), plain(flag.text)) for flag in context.findings.flags]
    if not flags:
        return None
    title = "Before you believe the numbers"
    return Section(id="flags", short="Warnings", title=title, flags=flags)


# ---- results


MODELS = {
    tables.SHARED: (
        "The server's model, on its test data; where it has none, and in the columns named so, on clients' tests."
    ),
    tables.PERSONAL: "The model that a client uses, on its test samples.",
}


def _results(context: PageContext) -> Section:
    several = len(context.comparison.seeds) > 1
    text = "Mean ± standard deviation over seeds." if several else "One seed."
    if not context.alone:
        text += (
            " The star marks the best mean, which need not be a shown difference: read the verdict. A column's head"
            " sorts by it."
        )
    blocks: list[Block] = [Block(table=tables.headline(context))]
    unseen = held(context) is not None  # they have a separate section
    for title, scores in tables.score_tables(context).items():
        if not (unseen and title == tables.UNSEEN):
            blocks.append(Block(title=title, table=scores, text=MODELS.get(title, "")))
    for title, table in (
        ("Stability", tables.stability(context)),
        ("Screening", _screening(context)),
        ("Runs that failed", _failures(context)),
    ):
        if table is not None:
            blocks.append(
                Block(title=title, table=table, text=_screening_text(context) if title == "Screening" else "")
            )
    return Section(id="results", short="Results", title="Results", text=text, blocks=blocks)


def _failures(context: PageContext) -> DataTable | None:
    failures = context.comparison.failures
    if not failures:
        return None
    rows = [
        [
            data_table.text_cell(context.name_of(label), label),
            data_table.number_cell(str(seed), seed),
            data_table.text_cell(short(why, 600)),
        ]
        for (label, seed), why in failures.items()
    ]
    return DataTable(
        "Runs that failed; they are missing from all means",
        [Head("method", words=True), Head("seed"), Head("why", words=True)],
        rows,
        sort=False,
        stack=True,
    )


def _screening(context: PageContext) -> DataTable | None:
    setting_text = context.comparison.screening
    if setting_text is None:
        return None
    rows = []
    for label, rung in setting_text.dropped.items():
        after = (
            "wrongly dropped"
            if label in setting_text.wrongly
            else "rightly dropped"
            if label in setting_text.audited
            else "not audited"
        )
        rows.append(
            [
                data_table.text_cell(context.name_of(label), label),
                data_table.number_cell(str(rung), rung),
                data_table.text_cell(after),
            ]
        )
    heads = [
        Head("method", words=True),
        Head("dropped after round"),
        Head("trained to the end anyway", words=True),
    ]
    return DataTable("Methods that short runs dropped", heads, rows)


def _screening_text(context: PageContext) -> str:
    setting_text = context.comparison.screening
    if setting_text is None:
        return ""
    text = (
        f"Short runs of {', '.join(str(rung) for rung in setting_text.rungs)} rounds dropped"
        f" {counted(len(setting_text.dropped), 'method')}."
    )
    if setting_text.share is None or setting_text.low is None or setting_text.high is None:
        return text + " None of them was trained to the end to see whether that was right."
    share = (
        f"{len(setting_text.wrongly)} of {len(setting_text.audited)} ({setting_text.share:.0%}, 95 % interval"
        f" {setting_text.low:.0%} to"
        f" {setting_text.high:.0%})"
    )
    return f"{text} Of those trained to the end anyway, {share} would have been kept."


def _differences(context: PageContext) -> Section | None:
    drawn, ahead = differences(context), tables.margins(context)
    if not drawn and ahead is None:
        return None
    blocks: list[Block] = [Block(pictures=drawn)] if drawn else []
    if ahead is not None:
        blocks.append(Block(title="Margin over the best of the others", table=ahead))
    text = (
        "Differences are taken seed by seed. A verdict needs at least three seeds and p under 0.05 after correction for"
        " the number of methods (Holm); the intervals are those of each difference alone."
    )
    return Section(id="differences", short="Differences", title="Are the differences real?", text=text, blocks=blocks)


def _curves(context: PageContext) -> Section | None:
    by_axis = curve_pictures(context)
    if not by_axis:
        return None
    tabs = [Tab(id=axis, title=TABS[axis], pictures=drawn, text=_same_note(drawn)) for axis, drawn in by_axis.items()]
    block = Block(tabs=tabs, name="curves", label="Curves against")
    return Section(id="curves", short="Curves", title="Curves over the rounds", key=_key(context), blocks=[block])


def _same_note(drawn: Sequence[Picture]) -> str:
    return drawn[0].note if drawn else ""


def _key(context: PageContext) -> list[int]:
    return [index for index, runs in enumerate(context.runs) if runs]


def _costs(context: PageContext) -> Section:
    target, drawn = tables.target_table(context), fronts(context)
    blocks: list[Block] = [Block(title="Score against cost", pictures=drawn)] if drawn else []
    if target is not None:
        reached = (
            f"A target of {score(context.findings.target)} {score_label(context.main_score)}."
            if context.main_score
            else ""
        )
        blocks.append(Block(title="Costs to reach the target", table=target, text=reached))
    blocks.append(Block(title="Costs of a run", pictures=costs(context)))
    table = tables.cost_table(context)
    if table is not None:
        blocks.append(Block(table=table))
    return Section(id="costs", short="Costs", title="What it costs", key=_key(context) if drawn else (), blocks=blocks)


def _new_clients(context: PageContext) -> Section | None:
    picture = held(context)
    if picture is None:
        return None
    text = (
        "Clients that never trained: how well the model serves them as they receive it, and after a few steps on their"
        " own data."
    )
    return Section(
        id="unseen",
        short="New clients",
        title="New clients",
        text=text,
        blocks=[Block(pictures=[picture], beside=picture.table)],
    )


# ---- data and clients


def _data(context: PageContext) -> Section | None:
    facts = context.comparison.facts
    picture = partition(facts)
    if picture is None and not facts.skew and not facts.notes and not facts.clients:
        return None
    sizes = {
        "training": facts.train,
        "validation": facts.validation,
        "test on the server": facts.test,
        "clients' own tests": facts.own_test,
    }
    blocks: list[Block] = [Block(pairs=[(name, f"{value:,} samples") for name, value in sizes.items() if value])]
    if picture is not None:
        blocks.append(Block(pictures=[picture], wide=True))
    skew = skew_table(facts)
    if skew is not None:
        blocks.append(Block(title="Skew in numbers", table=skew))
    if facts.notes:
        blocks.append(Block(title="Notes", items=[short(note, 2000) for note in facts.notes]))
    return Section(id="data", short="Data", title="The federation", blocks=blocks)


def _clients(context: PageContext) -> Section | None:
    picture = served(context)
    if picture is None:
        return None
    text = (
        "An average hides clients that a method serves badly. Scores are those of personal models on clients' tests,"
        " in the last round."
    )
    return Section(
        id="clients-served",
        short="Fairness",
        title="Client by client",
        text=text,
        blocks=[Block(pictures=[picture], beside=picture.table)],
    )


def _measures(context: PageContext, panels: Sequence[Panel]) -> Section | None:
    if not panels:
        return None
    blocks: list[Block] = []
    for text, group in itertools.groupby(enumerate(panels, 1), lambda pair: plain(pair[1].text)):
        some = list(group)
        drawn = [
            picture
            for index, panel in some
            if (picture := panel_picture(panel, index, context, [p for _, p in some])) is not None
        ]
        blocks.append(Block(title=short(some[0][1].title.partition(" by layer:")[0], 120), text=text, pictures=drawn))
        blocks += [Block(table=panel_grid(panel)) for _, panel in some if panel.kind == "table"]
        empty = [short(panel.title, 120) for _, panel in some if panel.kind != "table" and not numbers(panel)]
        blocks += [Block(text=f"{title}: these runs have no values.") for title in empty]
    return Section(id="measures", short="Measures", title="Measures", key=_key(context), blocks=blocks)


# ---- glossary

COMPARED = {
    "to baseline": "difference to the baseline, seed by seed, mean and 95 % interval (Student's t)",
    "verdict": (
        "better or worse: p of the paired t-test is under 0.05 after Holm's correction for the number of methods; not"
        " shown: it is not; no conclusion: fewer than three seeds"
    ),
    "margin": "difference to the best of the other methods by the same score",
    "on the front": "no other method is at least as good and cheaper",
}
TERMS = {
    "chance": "accuracy of always naming the commonest class of the test data",
    "bytes": "payload of all messages, up (from clients) and down (to clients); framing is counted apart",
    "training": "floating-point operations of clients' local training, forward and backward",
    "time": "seconds of training rounds on this machine, without evaluation",
    "worst tenth": "mean over the tenth of the clients that are served worst",
}


def _glossary(context: PageContext) -> Section:
    keys = dict.fromkeys(key for line in context.lines if line is not None for key in line.scores)
    terms = (
        {head(key): score_label(key) for key in keys if score_label(key) != head(key)}
        | ({} if context.alone else COMPARED)
        | TERMS
    )
    return Section(
        id="glossary", short="Glossary", title="What the columns mean", blocks=[Block(terms=list(terms.items()))]
    )
