"""Show progress on a terminal: a bar, or plain lines where the output is not a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

from fedstrata.common.events import Event, Finished, Observer, RoundDone, Started
from fedstrata.report.progress.text import Totals, evaluated, opening, refusals


@contextmanager
def progress(console: Console, *, plain: bool = False) -> Iterator[Observer]:
    """Yield an observer for one run; the terminal is left in order however the run ends.

    Args:
        console: where to write.
        plain: lines even on a terminal.
    """
    if plain or not console.is_terminal or console.is_dumb_terminal:
        yield ProgressLines(console)
        return
    bar = ProgressBar(console)
    try:
        yield bar
    finally:
        bar.close()


class ProgressLines:
    """Prints one line for each evaluated round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds = 0
        self._totals = Totals()

    def __call__(self, event: Event) -> None:
        """Print an event."""
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


class ProgressBar:
    """Shows a bar with round, score, bytes and time left."""

    def __init__(self, console: Console) -> None:
        self._totals = Totals()
        self._task: TaskID | None = None
        self._bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )

    def __call__(self, event: Event) -> None:
        """Show an event."""
        for line in opening(event):
            self._bar.console.print(line, soft_wrap=True)
        if isinstance(event, Started):
            self._task = self._bar.add_task("", total=event.rounds, completed=event.first, text="first round")
            self._bar.start()
        elif isinstance(event, RoundDone) and self._task is not None:
            self._totals.add(event.row)
            for line in refusals(event.row):
                self._bar.console.print(line, soft_wrap=True)
            self._bar.update(
                self._task, completed=int(event.row["round"]) + 1, text=self._totals.text(event.row, short=True)
            )
        elif isinstance(event, Finished):
            self.close()

    def close(self) -> None:
        """Stop drawing; the last state stays on the screen."""
        self._bar.stop()
