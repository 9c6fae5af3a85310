"""Measures that give several quantities at once, each with pictures of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedstrata.common.errors import ConfigError
from fedstrata.diagnostics.base import Measure, PanelText, Runs, drawn
from fedstrata.diagnostics.panel import Panel


@dataclass(frozen=True)
class Several(Measure):
    """A measure whose series belong to several quantities: "cosine/conv1" is the series "conv1" of "cosine"; without a
    slash, of the main one.

    Class attributes:
        others: quantities besides the main one, by the word in front of the slash.
    """

    others: ClassVar[Mapping[str, PanelText]] = {}

    def panels(self, name: str, runs: Runs) -> list[Panel]:
        """A curve and maps of layer groups for each quantity."""
        parts = {"": PanelText(self.title, self.text, self.unit)} | dict(self.others)
        return [
            panel for word, shown in parts.items() for panel in drawn(shown, name, _part(runs, name, word, self.others))
        ]


def _part(runs: Runs, name: str, word: str, others: Mapping[str, PanelText]) -> Runs:
    """The same runs, as if this quantity were all that the measure gives."""

    def less(row: Mapping[str, Any]) -> dict[str, Any]:
        found: Mapping[str, float | None] = (row.get("measures") or {}).get(name, {})
        split = ((*_halves(key, others), value) for key, value in found.items())
        return {
            "round": row["round"],
            "measures": {name: {series: value for first, series, value in split if first == word}},
        }

    return {label: [[less(row) for row in rows] for rows in seeds] for label, seeds in runs.items()}


def _halves(key: str, others: Mapping[str, PanelText]) -> tuple[str, str]:
    word, slash, series = key.partition("/")
    return (word, series) if slash and word in others else ("", key)


def at_least(least: int, setting: str, value: int, meaning: str) -> None:
    """Refuse a setting below its least value.

    Raises:
        ConfigError: it is below.
    """
    if value < least:
        raise ConfigError(f"{setting} is {value}; it is {meaning}, at least {least}.")
