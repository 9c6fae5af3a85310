"""Panels: what a measure or a study shows in a report, drawn by the page, the figures and the tables alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Numbers: TypeAlias = Sequence[float | None]

KINDS = ("lines", "heat", "bars", "table")


@dataclass(frozen=True)
class Panel:
    """One figure with its table and the text that explains it.

    Attributes:
        title: a few words.
        text: what is measured, in which unit, and what high and low mean; with its source.
        kind: "lines" draws ``series`` against ``x``; "bars" draws ``series`` by the categories ``x``; "heat" draws
            ``series`` as rows over the columns ``x``; "table" shows ``series`` as rows only.
        x: positions (rounds from 1, epsilons, ...) or names of categories.
        series: name (a method, a layer group) -> a value for each of ``x``; None where it is undefined.
        spread: name -> half-width of a band around the series, for "lines"; may be empty.
        x_name, y_name: axes, with units.
    """

    title: str
    text: str
    kind: Literal["lines", "heat", "bars", "table"]
    x: Sequence[float] | Sequence[str]
    series: Mapping[str, Numbers]
    spread: Mapping[str, Numbers] = field(default_factory=dict)
    x_name: str = "round"
    y_name: str = ""
