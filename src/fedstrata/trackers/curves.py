"""Collect what trackers show: numbers of a round by name, running totals, settings, and the summary."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SCORES = (
    "loss",
    "accuracy",
    "validation",
    "shared_on_clients",
    "personal",
    "personal_std",
    "personal_worst10",
    "heldout",
    "heldout_own",
    "heldout_adapted",
)
TOTALS = {
    "bytes_up": "cost/bytes_up",
    "bytes_down": "cost/bytes_down",
    "flops": "cost/flops",
    "seconds": "cost/seconds",
}


class Curves:
    """Numbers of rounds as curves; costs are running totals, which a resumed run continues.

    Args:
        folder: of the run, None where it keeps nothing.
        first: the round that the run begins with; what rounds.jsonl holds of those before counts.
    """

    def __init__(self, folder: Path | None, first: int) -> None:
        self.totals = dict.fromkeys(TOTALS, 0.0)
        for row in _before(folder, first):
            self._add(row)

    def _add(self, row: Mapping[str, Any]) -> None:
        for name in TOTALS:
            self.totals[name] += float(row.get(name) or 0)

    def of(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return name -> number of one round: scores where it was evaluated, totals so far, measures by series."""
        self._add(row)
        values_by_name = {name: row.get(name) for name in SCORES}
        values_by_name |= {f"metrics/{name}": value for name, value in (row.get("metrics") or {}).items()}
        values_by_name |= {shown: self.totals[name] for name, shown in TOTALS.items()}
        for measure, series in (row.get("measures") or {}).items():
            values_by_name |= {f"measures/{measure}/{name}": value for name, value in series.items()}
        return dict(numbers(values_by_name))


def numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield finite numbers of nested mappings by path; null, text and lists are left out."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)


def settings(folder: Path | None) -> dict[str, str | int | float | bool]:
    """Read the run's configuration by public name from its manifest; "none" where nothing is set."""
    if folder is None:
        return {}
    config = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["config"]
    return {name: "none" if value is None else value for name, value in config.items()}


def _before(folder: Path | None, first: int) -> Iterator[Mapping[str, Any]]:
    if folder is None or not first:
        return
    with (folder / "rounds.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["round"] < first:
                yield row
