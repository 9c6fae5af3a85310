"""The table of skew statistics, each with its meaning."""

from __future__ import annotations

from fedstrata.data.statistics.facts import Facts
from fedstrata.data.statistics.interpretation import CHANCE, EXPLANATIONS
from fedstrata.report.page import data_table
from fedstrata.report.page.data_table import Cell, DataTable, Head
from fedstrata.report.page.text import loose


def skew_table(facts: Facts) -> DataTable | None:
    """Return the skew statistics with their meaning and, where known, their value by chance, or None."""
    names = [name for name in facts.skew if not name.endswith(CHANCE)]
    if not names:
        return None
    chances = any(name + CHANCE in facts.skew for name in names)
    rows: list[list[Cell]] = []
    for name in names:
        title, meaning = EXPLANATIONS.get(name, (name.replace("_", " "), ""))
        row = [data_table.text_cell(title, _tip(name, title)), _number(facts.skew[name])]
        row += [_number(facts.skew.get(name + CHANCE))] if chances else []
        rows.append([*row, Cell(meaning or "-", words=True, tone="wrap")])
    heads = [
        Head("number", words=True),
        Head("here"),
        *([Head("by chance", "after a random deal to clients of the same sizes")] if chances else []),
    ]
    return DataTable("How much clients differ", [*heads, Head("meaning", words=True)], rows, sort=False, stack=True)


def _tip(name: str, title: str) -> str:
    """Return the name in the facts where the table has another one."""
    return title if name.replace("_", " ") == title else f"{title} ({name})"


def _number(value: float | None) -> Cell:
    return data_table.number_cell("-" if value is None else loose(value), value)
