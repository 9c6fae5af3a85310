"""Measures that compute several quantities at once, each with separate panels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedstrata.common.errors import ConfigError
from fedstrata.diagnostics.base import Measure, PanelText, Runs, default_panels
from fedstrata.diagnostics.panel import Panel


@dataclass(frozen=True)
class MultiMeasure(Measure):
    """Computes series of several quantities: "cosine/conv1" is the series "conv1" of the quantity "cosine".

    A series without a slash belongs to the main quantity.

    Class attributes:
        quantities: those besides the main one, by the word before the slash.
    """

    quantities: ClassVar[Mapping[str, PanelText]] = {}

    def panels(self, name: str, runs: Runs) -> list[Panel]:
        """Build a curve and maps of layer groups for each quantity."""
        texts = {"": PanelText(self.title, self.text, self.unit)} | dict(self.quantities)
        return [
            panel
            for quantity, text in texts.items()
            for panel in default_panels(text, name, _only(runs, name, quantity, self.quantities))
        ]


def _only(runs: Runs, name: str, quantity: str, quantities: Mapping[str, PanelText]) -> Runs:
    """Reduce runs to the series of one quantity of a measure."""

    def reduced(row: Mapping[str, Any]) -> dict[str, Any]:
        values: Mapping[str, float | None] = (row.get("measures") or {}).get(name, {})
        split = ((*_split(key, quantities), value) for key, value in values.items())
        series = {key: value for first, key, value in split if first == quantity}
        return {"round": row["round"], "measures": {name: series}}

    return {label: [[reduced(row) for row in rows] for rows in seeds] for label, seeds in runs.items()}


def _split(key: str, quantities: Mapping[str, PanelText]) -> tuple[str, str]:
    """Split "quantity/series"; the main quantity is ""."""
    quantity, slash, series = key.partition("/")
    return (quantity, series) if slash and quantity in quantities else ("", key)


def at_least(least: int, setting: str, value: int, meaning: str) -> None:
    """Refuse a setting below its least value.

    Raises:
        ConfigError: the value is below ``least``.
    """
    if value < least:
        raise ConfigError(f"{setting} is {value}; it is {meaning}, at least {least}.")
