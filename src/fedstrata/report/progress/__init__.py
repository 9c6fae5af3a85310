"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedstrata.common.events import Event, ExecutorChosen, Finished, Observer, RoundDone, Started
from fedstrata.common.units import duration, number, size


@contextmanager
def progress(console: Console, *, plain: bool = False) -> Iterator[Observer]:
    """An observer for one run, which leaves the terminal in order however the run ends.

    Args:
        console: where to write.
        plain: lines even on a terminal.
    """
    if plain or not console.is_terminal or console.is_dumb_terminal:
        yield Lines(console)
        return
    bar = Bar(console)
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def shown(wanted: bool | None = None) -> Iterator[tuple[Observer, ...]]:  # what users give as progress=  # noqa: FBT001
    """Observers that show a run which was started from Python.

    Args:
        wanted: None shows it in a notebook and nowhere else; True also elsewhere, on stderr; False shows nothing.
    """
    from fedstrata.report.progress.notebook import Cell, in_notebook  # it stands on this module  # noqa: PLC0415

    if wanted is False or (wanted is None and not in_notebook()):
        yield ()
    elif in_notebook():
        cell = Cell()
        try:
            yield (cell,)
        finally:
            cell.close()
    else:
        with progress(Console(stderr=True, markup=False, highlight=False)) as observer:
            yield (observer,)


class Lines:
    """One line for each evaluated round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds = 0
        self._totals = Totals()

    def __call__(self, event: Event) -> None:
        """Write what the event says."""
        for line in opening(event):
            self._console.print(line, soft_wrap=True)
        if isinstance(event, Started):
            self._rounds = event.rounds
        if isinstance(event, RoundDone):
            self._totals.add(event.row)
            for line in refusals(event.row):
                self._console.print(line, soft_wrap=True)
            if evaluated(event.row):
                self._console.print(
                    f"round {int(event.row['round']) + 1}/{self._rounds}  {self._totals.text(event.row)}",
                    soft_wrap=True,
                )


class Bar:
    """A bar with round, score, bytes and time left."""

    def __init__(self, console: Console) -> None:
        self._totals = Totals()
        self._task: TaskID | None = None
        self._bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[said]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )

    def __call__(self, event: Event) -> None:
        """Show what the event says."""
        for line in opening(event):
            self._bar.console.print(line, soft_wrap=True)
        if isinstance(event, Started):
            self._task = self._bar.add_task("", total=event.rounds, completed=event.first, said="first round")
            self._bar.start()
        elif isinstance(event, RoundDone) and self._task is not None:
            self._totals.add(event.row)
            for line in refusals(event.row):
                self._bar.console.print(line, soft_wrap=True)
            self._bar.update(
                self._task, completed=int(event.row["round"]) + 1, said=self._totals.text(event.row, short=True)
            )
        elif isinstance(event, Finished):
            self.close()

    def close(self) -> None:
        """Stop drawing; the last state stays on the screen."""
        self._bar.stop()


class Totals:
    """Bytes so far, and the last known score."""

    def __init__(self) -> None:
        self.up = self.down = 0
        self.score = ""

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a round."""
        self.up += row.get("bytes_up") or 0
        self.down += row.get("bytes_down") or 0
        self.score = score(row) or self.score

    def text(self, row: Mapping[str, Any], *, short: bool = False) -> str:
        """A round in one line."""
        if short:
            return f"{self.score}  up {size(self.up)}  down {size(self.down)}"
        spent = f"{self.score}  loss {number(row.get('loss'))}  up {size(self.up)}  down {size(self.down)}"
        return f"{spent}  {duration(row.get('seconds'))}"


def evaluated(row: Mapping[str, Any]) -> bool:
    """Whether the round has a score."""
    return score(row) != ""


def score(row: Mapping[str, Any]) -> str:
    """The scores of a round in words; nothing where it was not evaluated."""
    said = [
        f"{name} {number(row[key])}"
        for key, name in (("accuracy", "accuracy"), ("personal", "personal"))
        if row.get(key) is not None
    ]
    metrics = row.get("metrics") or {}
    if not said:
        said = [
            f"{name} {number(metrics[name])}" for name in ("rmse", "r2") if isinstance(metrics.get(name), int | float)
        ]
    return "  ".join(said)


def refusals(row: Mapping[str, Any]) -> list[str]:
    """A line for each reply that was left out: client, reason, message."""
    return [
        f"round {int(row['round']) + 1}: reply of client {_plain(item[0])} left out, {_plain(item[1])}:"
        f" {_plain(item[2])}"
        for item in row.get("refused") or ()
    ]


def opening(event: Event) -> list[str]:
    """What is said before the rounds."""
    if isinstance(event, Started):
        who = f"{event.clients:,} clients, {event.cohort} a round, {event.rounds} rounds"
        lines = [
            f"{event.method} on {event.data}, {event.partition}: {who}",
            f"{event.model}, {event.parameters:,} parameters",
        ]
        if event.first:
            lines.append(f"going on with round {event.first + 1}")
        return [*lines, *(f"note: {note}" for note in event.notes)]
    if isinstance(event, ExecutorChosen):
        measured = ", ".join(f"{name} {rate:,.0f}" for name, rate in event.measured.items())
        return [
            (
                f"executor: {event.executor}, {event.workers} worker{'s' if event.workers != 1 else ''} (samples a second:"
                f" {measured})"
            )
        ]
    return []


def _plain(value: object) -> str:
    """What a client said, without control characters and cut to a length."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return text if len(text) <= 200 else text[:200] + "..."
