"""Write the texts of progress, for a terminal, a log and a notebook alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedstrata.common.events import Event, ExecutorChosen, Started
from fedstrata.common.units import duration, number, size


class Totals:
    """Adds up bytes so far, and keeps the last known score."""

    def __init__(self) -> None:
        self.up = self.down = 0
        self.score = ""

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a round."""
        self.up += row.get("bytes_up") or 0
        self.down += row.get("bytes_down") or 0
        self.score = score(row) or self.score

    def text(self, row: Mapping[str, Any], *, short: bool = False) -> str:
        """Write a round in one line."""
        if short:
            return f"{self.score}  up {size(self.up)}  down {size(self.down)}"
        spent = f"{self.score}  loss {number(row.get('loss'))}  up {size(self.up)}  down {size(self.down)}"
        return f"{spent}  {duration(row.get('seconds'))}"


def evaluated(row: Mapping[str, Any]) -> bool:
    """Return whether the round has a score."""
    return score(row) != ""


def score(row: Mapping[str, Any]) -> str:
    """Write the scores of a round; "" where it was not evaluated."""
    parts = [
        f"{name} {number(row[key])}"
        for key, name in (("accuracy", "accuracy"), ("personal", "personal"))
        if row.get(key) is not None
    ]
    metrics = row.get("metrics") or {}
    if not parts:
        parts = [
            f"{name} {number(metrics[name])}" for name in ("rmse", "r2") if isinstance(metrics.get(name), int | float)
        ]
    return "  ".join(parts)


def refusals(row: Mapping[str, Any]) -> list[str]:
    """Write a line for each reply that was left out: client, reason, message."""
    return [
        f"round {int(row['round']) + 1}: reply of client {_plain(item[0])} left out, {_plain(item[1])}:"
        f" {_plain(item[2])}"
        for item in row.get("refused") or ()
    ]


def opening(event: Event) -> list[str]:
    """Write the lines before the first round."""
    if isinstance(event, Started):
        who = f"{event.clients:,} clients, {event.cohort} a round, {event.rounds} rounds"
        lines = [
            f"{event.method} on {event.data}, {event.partition}: {who}",
            f"{event.model}, {event.parameters:,} parameters",
        ]
        if event.first:
            lines.append(f"continuing with round {event.first + 1}")
        return [*lines, *(f"note: {note}" for note in event.notes)]
    if isinstance(event, ExecutorChosen):
        measured = ", ".join(f"{name} {rate:,.0f}" for name, rate in event.measured.items())
        return [
            (
                f"executor: {event.executor}, {event.workers} worker{'s' if event.workers != 1 else ''} (samples a"
                " second:"
                f" {measured})"
            )
        ]
    return []


def _plain(value: object) -> str:
    """Return a client's text without control characters, cut to a length."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return text if len(text) <= 200 else text[:200] + "..."
