"""How much clients differ, as a table that says what each number means."""

from __future__ import annotations

from collections.abc import Mapping

from fedstrata.data.statistics.facts import Facts
from fedstrata.report.page import data_table
from fedstrata.report.page.data_table import Cell, Grid, Head
from fedstrata.report.page.text import loose

CHANCE = "_chance"
MEANINGS: Mapping[str, tuple[str, str]] = {
    "label_skew": ("label skew", "0: labels as after a random deal; 1: every client holds one class only"),
    "label_js": (
        "label divergence",
        "mean Jensen-Shannon divergence of a client's labels to all labels, in bits; 0: alike, 1: no class in common",
    ),
    "label_classes": ("classes a client", "how many equally frequent classes would be as varied, mean over clients"),
    "label_missing": ("classes missing", "share of the classes of which a client has no sample, mean over clients"),
    "quantity_gini": (
        "size inequality",
        "Gini coefficient of clients' sizes; 0: all equal, near 1: one client holds everything",
    ),
    "quantity_max_median": ("largest to median", "samples of the largest client over those of the median one"),
    "quantity_smallest_tenth": (
        "smallest tenth",
        "share of all samples that the smallest tenth of the clients hold; 0.1: all equal",
    ),
    "feature_shift": (
        "feature shift",
        (
            "share of the variance between samples of one label that lies between clients; above chance: clients'"
            " inputs differ"
        ),
    ),
    "target_shift": ("target shift", "the same of a regression's targets"),
}


def skew_table(facts: Facts) -> Grid | None:
    """Numbers about skew with their meaning, beside what chance alone gives; None where there are none."""
    names = [name for name in facts.skew if not name.endswith(CHANCE)]
    if not names:
        return None
    chances = any(name + CHANCE in facts.skew for name in names)
    rows: list[list[Cell]] = []
    for name in names:
        said, meaning = MEANINGS.get(name, (name.replace("_", " "), ""))
        row = [data_table.word(said, tip_of(name, said)), _number(facts.skew[name])]
        row += [_number(facts.skew.get(name + CHANCE))] if chances else []
        rows.append([*row, Cell(meaning or "-", words=True, tone="wrap")])
    heads = [
        Head("number", words=True),
        Head("here"),
        *([Head("by chance", "after a random deal to clients of the same sizes")] if chances else []),
    ]
    return Grid("How much clients differ", [*heads, Head("meaning", words=True)], rows, sort=False, stack=True)


def tip_of(name: str, said: str) -> str:
    """The name in the facts, where the table says it in other words."""
    return said if name.replace("_", " ") == said else f"{said} ({name})"


def _number(value: float | None) -> Cell:
    return data_table.figure("-" if value is None else loose(value), value)
