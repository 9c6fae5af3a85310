"""Describe what the template shows: sections and blocks. Empty parts are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedstrata.report.page.data_table import DataTable
from fedstrata.report.page.drawing import Picture


@dataclass(frozen=True)
class Tile:
    """Shows a fact beside the answer: its name, its value, and a comment."""

    name: str
    value: str
    more: str = ""


@dataclass(frozen=True)
class Tab:
    """Shows one of several views of the same data.

    Attributes:
        id: letters; unique in its block.
        title: on the tab.
        pictures, text: inside.
    """

    id: str
    title: str
    pictures: Sequence[Picture]
    text: str = ""


@dataclass(frozen=True)
class Block:
    """Describes a part of a section, under a heading where it has a title.

    Attributes:
        table: shown at once, or behind a line to click on where ``behind`` says one; ``printed``: it is opened for
            printing.
        pictures: side by side; ``wide``: over the whole width; ``beside``: a table next to them, in place of the one
            behind the picture.
        tabs: with ``name`` (an id) and ``label``.
        code: shown with a button that copies it; ``hidden``: the same behind ``behind``. ``name`` is their id.
        pairs, terms, items: names with values, words with meanings, a list.
    """

    title: str = ""
    text: str = ""
    table: DataTable | None = None
    behind: str = ""
    printed: bool = False
    pictures: Sequence[Picture] = ()
    wide: bool = False
    beside: DataTable | None = None
    tabs: Sequence[Tab] = ()
    name: str = ""
    label: str = ""
    code: str = ""
    hidden: str = ""
    pairs: Sequence[tuple[str, str]] = ()
    terms: Sequence[tuple[str, str]] = ()
    items: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """Describes a section of the page.

    Attributes:
        id, short, title: of the section; ``short`` is in the list of contents.
        answer: a sentence, in large letters.
        tiles, flags: facts beside the answer; warnings, each a code and a sentence.
        key: places of the methods that its pictures show.
    """

    id: str
    short: str
    title: str
    answer: str = ""
    text: str = ""
    tiles: Sequence[Tile] = ()
    flags: Sequence[tuple[str, str]] = ()
    key: Sequence[int] = ()
    blocks: Sequence[Block] = ()
