"""Show the progress of a comparison: a table on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedstrata.common.units import duration, number
from fedstrata.compare.job import Id, Job

HEARTBEAT = 30.0  # seconds between lines where no table is shown
SHOWN = 40  # rows of the live table: unfinished runs first


@dataclass
class RunProgress:
    """Holds the progress of one run.

    Attributes:
        state: waiting, running, reused, finished, failed, dropped, paused, stopped, or what it waits for.
        done, rounds: of its rounds.
        score: the last one known, in words.
        spent, measured: seconds and rounds since it was begun here, for the time left.
    """

    state: str = "waiting"
    done: int = 0
    rounds: int = 0
    score: str = ""
    spent: float = 0.0
    measured: int = 0

    @property
    def left(self) -> float | None:
        """Estimate the seconds to the last round at the pace so far."""
        if self.state not in ("running", "paused") or not self.measured:
            return None
        return self.spent / self.measured * (self.rounds - self.done)


class ProgressBoard:
    """Shows all runs; receives every event, and draws now and then.

    Args:
        console: where to.
        ids: (label, seed) of all runs.
        rounds: of each.
        live: a table that is drawn anew; otherwise lines.
    """

    def __init__(self, console: Console, ids: Sequence[Id], rounds: int, *, live: bool) -> None:
        self.console = console
        self.cells = {id_: RunProgress(rounds=rounds) for id_ in ids}
        self.table: Live | None = Live(console=console, auto_refresh=False, transient=True) if live else None
        self.side_by_side = 1
        self.last_line, self.drawn = time.monotonic(), 0.0

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(Text(text), soft_wrap=True)

    def mark(self, id_: Id, state: str) -> None:
        """Set a state that no event reports: reused, dropped, stopped."""
        self.cells[id_].state = state

    def notify(self, job: Job, message: Mapping[str, Any]) -> None:
        """Handle an event of a run."""
        cell, name, event = self.cells[job.id], f"{job.label}, seed {job.seed}", message["event"]
        if event == "started":
            cell.state, cell.done, cell.rounds = "running", message["first"], message["rounds"]
        elif event == "round":
            self._round(cell, message)
        elif event == "waiting":
            cell.state = "waiting for another process"
            self.say(f"{name}: waiting, as {message['why']}")
        elif event == "aside":
            self.say(
                f"{name}: the cached run was damaged ({message['why']}); it was moved to {message['place']}, and the"
                " run"
                " starts again"
            )
        elif event == "again":
            cell.state = "waiting"
            self.say(f"{name}: {message['why']}")
        else:
            self._ended(cell, name, message)

    def _round(self, cell: RunProgress, message: Mapping[str, Any]) -> None:
        cell.done = message["done"]
        cell.spent += (message["seconds"] or 0.0) + (message["eval_seconds"] or 0.0)
        cell.measured += 1
        scores = [
            f"{key} {number(message[key])}"
            for key in ("accuracy", "personal", "validation")
            if message.get(key) is not None
        ]
        cell.score = "  ".join(scores) or cell.score

    def _ended(self, cell: RunProgress, name: str, message: Mapping[str, Any]) -> None:
        cell.state = message["event"]
        if cell.state == "failed":
            self.say(f"{name}: failed: {message['why']}")
        elif cell.state == "finished":
            count = sum(c.state in ("finished", "reused") for c in self.cells.values())
            spent = f", {duration(cell.spent)}" if cell.measured else ""
            self.say(f"{name}: {cell.score or 'finished'}{spent} ({count} of {len(self.cells)} runs)")
        self.last_line = time.monotonic()

    def tick(self) -> None:
        """Draw, or print that runs are still going."""
        now = time.monotonic()
        if self.table is not None:
            if now - self.drawn > 0.5:
                self.table.update(self.view(), refresh=True)
                self.drawn = now
        elif now - self.last_line > HEARTBEAT:
            running = [
                f"{label} s{seed} {c.done}/{c.rounds}"
                for (label, seed), c in self.cells.items()
                if c.state == "running"
            ]
            if running:
                self.say(f"still running: {', '.join(running)}{self._left()}")
            self.last_line = now

    def _left(self) -> str:
        """Estimate the time left; runs that have not begun count as the mean of the others."""
        known = [c.spent / c.measured for c in self.cells.values() if c.measured]
        if not known:
            return ""
        pace = sum(known) / len(known)
        open_ = [c for c in self.cells.values() if c.state in ("waiting", "running", "paused")]
        seconds = sum((c.rounds - c.done) * (c.spent / c.measured if c.measured else pace) for c in open_)
        return f"; about {duration(seconds / self.side_by_side)} left"

    def view(self) -> Table:
        """Build the table: running runs first, then waiting, then finished ones."""
        order = {"running": 0, "waiting": 2, "reused": 4, "finished": 4, "dropped": 5}
        shown = sorted(self.cells.items(), key=lambda item: order.get(item[1].state, 1))[:SHOWN]
        over = sum(c.state in ("finished", "reused") for c in self.cells.values())
        table = Table(title=f"{over} of {len(self.cells)} runs{self._left()}", title_justify="left", expand=True)
        for name in ("method", "seed", "round", "scores", "state", "left"):
            table.add_column(name, justify="right" if name in ("seed", "round", "left") else "left", overflow="fold")
        for (label, seed), cell in shown:
            left = "" if cell.left is None else duration(cell.left)
            table.add_row(*map(Text, (label, str(seed), f"{cell.done}/{cell.rounds}", cell.score, cell.state, left)))
        if len(self.cells) > SHOWN:
            table.caption = f"and {len(self.cells) - SHOWN} more"
        return table


@contextmanager
def progress_board(console: Console, ids: Sequence[Id], rounds: int, *, plain: bool = False) -> Iterator[ProgressBoard]:
    """Open a board that leaves the terminal in order, however the comparison ends."""
    drawn = ProgressBoard(console, ids, rounds, live=console.is_terminal and not console.is_dumb_terminal and not plain)
    if drawn.table is None:
        yield drawn
        return
    with drawn.table:
        yield drawn
