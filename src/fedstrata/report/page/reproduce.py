"""Show how to repeat the comparison: command, machine, configuration; and what to cite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fedstrata.citations.cite import Citation
from fedstrata.citations.cite import cite as citations
from fedstrata.common.errors import FedstrataError
from fedstrata.config.config import KEYS, Config
from fedstrata.report.page import data_table
from fedstrata.report.page.blocks import Block, Section
from fedstrata.report.page.context import PageContext
from fedstrata.report.page.data_table import Cell, DataTable, Head
from fedstrata.report.page.text import counted, plain, setting_text, short

LONG = 4000  # letters of a value of the configuration


def section(context: PageContext) -> Section:
    """Build the section with command, machine and configuration."""
    comparison = context.comparison
    blocks: list[Block] = []
    if comparison.command:
        blocks.append(
            Block(
                title="Command", code="\n".join(plain(line) for line in comparison.command.splitlines()), name="command"
            )
        )
    blocks.append(Block(title="Methods", table=_methods(context)))
    side = comparison.side_by_side
    text = f"{counted(side, 'run')} at a time shared this machine; times were taken so." if side > 1 else ""
    machine = [(plain(name).replace("_", " "), short(value, 400)) for name, value in comparison.machine.items()]
    if machine or text:
        blocks.append(Block(title="Machine and versions", pairs=machine, text=text))
    if notes := list(dict.fromkeys(_notes(context))):
        blocks.append(Block(title="Notes", items=notes))
    differing, others = _configuration(comparison.config)
    if differing.rows:
        blocks.append(Block(title="Configuration: what differs from the defaults", table=differing))
    if others.rows:
        block = Block(table=others, behind=f"All other settings, at their defaults ({len(others.rows)})", printed=True)
        blocks.append(block if differing.rows else replace(block, title="Configuration"))
    return Section(id="again", short="Run it again", title="Run it again", blocks=blocks)


def _methods(context: PageContext) -> DataTable:
    """List whole names and whole settings: only here nothing is shortened."""
    heads = [
        Head("method", words=True),
        Head("in call syntax", words=True),
        Head("its settings", words=True),
        Head("runs"),
    ]
    rows = []
    for index, entry in enumerate(context.comparison.entries):
        settings = ", ".join(f"{plain(key)} = {setting_text(value)}" for key, value in entry.settings.items()) or "-"
        whole = Cell(plain(entry.method)[:20_000], words=True, tone="wrap")
        rows.append(
            [
                data_table.text_cell(context.names[index], context.labels[index], series=index),
                whole,
                Cell(settings, words=True, tone="wrap"),
                _runs(context, index),
            ]
        )
    return DataTable("What was compared", heads, rows, sort=False, stack=True)


def _runs(context: PageContext, index: int) -> Cell:
    return data_table.number_cell(
        f"{len(context.runs[index])} of {len(context.comparison.seeds)}", len(context.runs[index])
    )


def _notes(context: PageContext) -> Iterator[str]:
    for index, runs in enumerate(context.runs):
        for run in runs:
            for note in run.notes:
                yield f"{context.names[index]}, seed {run.summary.get('seed', '-')}: {short(note, 1000)}"


def _configuration(config: Mapping[str, Any]) -> tuple[DataTable, DataTable]:
    """Return the settings that differ from their defaults, and the rest."""
    differing: list[list[Cell]] = []
    others: list[list[Cell]] = []
    for name, value in config.items():
        key = KEYS.get(name)
        default = key.default if key is not None else None
        row = [
            data_table.text_cell(short(name, 60)),
            Cell(short(setting_text(value), LONG), words=True, tone="wrap"),
            Cell(short(setting_text(default), 200) if key else "-", words=True),
        ]
        row.append(Cell(key.meaning if key is not None else "no setting of this version", words=True, tone="wrap"))
        (others if key is not None and value == default else differing).append(row)
    heads = [
        Head("setting", words=True),
        Head("value", words=True),
        Head("default", words=True),
        Head("meaning", words=True),
    ]
    return DataTable("Settings that differ from their defaults", heads, differing, sort=False, stack=True), DataTable(
        "Settings at their defaults", heads, others, sort=False, stack=True
    )


# ---- citations


def cite(context: PageContext) -> Section | None:
    """List what to cite for the parts that were used."""
    known, missing = _citations(context)
    if not known and not missing:
        return None
    blocks: list[Block] = []
    if known:
        rows = [
            [Cell(plain(c.what), words=True, tone="wrap"), Cell(plain(c.text), words=True, tone="wrap")] for c in known
        ]
        blocks.append(
            Block(
                table=DataTable(
                    "Publications of the parts used",
                    [Head("for", words=True), Head("publication", words=True)],
                    rows,
                    sort=False,
                    stack=True,
                )
            )
        )
        blocks.append(
            Block(hidden="\n\n".join(c.bibtex for c in known), behind=f"BibTeX ({len(known)})", name="bibtex")
        )
    if missing:
        blocks.append(Block(text="Without a citation here: " + "; ".join(missing) + "."))
    return Section(id="cite", short="Cite", title="What to cite", blocks=blocks)


def _citations(context: PageContext) -> tuple[list[Citation], list[str]]:
    """Return citations, and what has none: a method from Python is unknown by its text, data may be missing."""
    known, missing = [], []
    for entry in context.comparison.entries:
        try:
            citations(entry.method)
        except FedstrataError:
            missing.append(short(entry.label))
        else:
            known.append(entry.method)
    if not known:
        return [], missing
    try:
        return list(citations(known, Config(**context.comparison.config))), missing
    except FedstrataError:
        return list(citations(known)), [*missing, "data and model"]
