"""Describe tables as plain records: the text of a cell, and its key for sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedstrata.report.page.text import HOVER, plain


@dataclass(frozen=True)
class Cell:
    """Describes one cell.

    Attributes:
        text: as shown.
        by: number that it is sorted by; None sorts last. Cells of words are sorted by their text.
        tip: whole text where ``text`` is a part of it.
        tone: "good", "bad", "muted", "best" or nothing.
        series: index of the method of a row's head; it gets the method's stroke beside it.
        words: whether the cell holds words rather than a number.
        under: a second line, smaller.
    """

    text: str
    by: float | None = None
    tip: str = ""
    tone: str = ""
    series: int | None = None
    words: bool = False
    under: str = ""


@dataclass(frozen=True)
class Head:
    """Describes a column.

    Attributes:
        text: a word or two.
        tip: what is in it.
        words: whether its cells are words, set to the left.
    """

    text: str
    tip: str = ""
    words: bool = False


@dataclass(frozen=True)
class DataTable:
    """Describes a table: the first cell of each row is its head.

    Attributes:
        caption: what a screen reader reads first.
        heads, rows: columns, and a cell for each.
        sort: whether columns can be sorted.
        stack: whether a narrow screen shows a row's cells below each other, as suits long words.
    """

    caption: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    sort: bool = True
    stack: bool = False


def text_cell(text: object, whole: object = None, **more: object) -> Cell:
    """Make a cell of words; ``whole`` becomes its tip where it adds something."""
    shown = plain(text)
    full = shown if whole is None else plain(whole)
    tip = "" if full == shown else full if len(full) <= HOVER else full[:HOVER] + "…"
    return Cell(shown, tip=tip, words=True, **more)  # type: ignore[arg-type]


def number_cell(text: str, by: float | None, tone: str = "", tip: str = "") -> Cell:
    """Make a cell with a number."""
    return Cell(text, by, tip, tone)
