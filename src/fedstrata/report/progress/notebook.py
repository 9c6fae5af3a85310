"""Show progress in a notebook: one output of a cell, redrawn as rounds are committed.

IPython is looked for, never imported.
"""

from __future__ import annotations

import io
import sys
import time
from html import escape
from typing import Any

from rich.console import Console, RenderableType

from fedstrata.common.events import Event, Finished, RoundDone, Started
from fedstrata.report.progress.text import Totals, opening, refusals

EVERY = 0.2  # seconds between drawings: a kernel's messages cost more than a small round
KEPT = 5  # of the lines about replies that were left out


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook (Jupyter, Colab, VS Code); a terminal's IPython is none.

    IPython has been imported long before by such a kernel, so that where it has not been there is no notebook.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class LiveTable:
    """Redraws a table in one output of a cell.

    For a notebook what :class:`rich.live.Live` is for a terminal.
    """

    def __init__(self, width: int = 110) -> None:
        self._width = width
        self._handle: Any = None

    def __enter__(self) -> LiveTable:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Keep the last state."""

    def update(self, renderable: RenderableType, *, refresh: bool = True) -> None:
        """Show anything that rich can print.

        Args:
            renderable: a table, a text, ...
            refresh: False keeps what is shown.
        """
        if not refresh:
            return
        console = Console(
            width=self._width, file=io.StringIO(), record=True, markup=False, highlight=False, force_jupyter=False
        )
        console.print(renderable)
        shown = Block(console.export_text().rstrip())
        if self._handle is None:
            self._handle = _display(shown)
        else:
            self._handle.update(shown)


class Block:
    """Shows text with its columns."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"


def _display(thing: object) -> Any:
    """Open a new output of the running cell."""
    return sys.modules["IPython"].display.display(thing, display_id=True)


class NotebookText:
    """Holds what the output shows: HTML for a page, text elsewhere."""

    def __init__(self, lines: list[str], done: int, rounds: int, status: str) -> None:
        self.lines, self.done, self.rounds, self.status = lines, done, rounds, status

    def __repr__(self) -> str:
        return "\n".join([*self.lines, f"round {self.done}/{self.rounds}  {self.status}"])

    def _repr_html_(self) -> str:
        above = "".join(f"<div>{escape(line)}</div>" for line in self.lines)
        bar = f"<progress max='{self.rounds}' value='{self.done}' aria-label='rounds'></progress>"
        return f"{above}<div>{bar} round {self.done}/{self.rounds} &nbsp; {escape(self.status)}</div>"


class NotebookProgress:
    """Shows a run in one output of the cell that started it."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._above: list[str] = []
        self._refused: list[str] = []
        self._done = self._rounds = 0
        self._status = "first round"
        self._handle: Any = None
        self._drawn = -EVERY

    def __call__(self, event: Event) -> None:
        """Show an event."""
        self._above += opening(event)
        if isinstance(event, Started):
            self._done, self._rounds = event.first, event.rounds
        elif isinstance(event, RoundDone):
            self._totals.add(event.row)
            self._refused += refusals(event.row)
            self._done, self._status = int(event.row["round"]) + 1, self._totals.text(event.row)
        if isinstance(event, Started | Finished) or time.monotonic() - self._drawn >= EVERY:
            self.draw()

    def close(self) -> None:
        """Show the last state, however the run ended."""
        if self._handle is not None:
            self.draw()

    def draw(self) -> None:
        """Make the output, or change it."""
        more = len(self._refused) - KEPT
        kept = [*self._refused[:KEPT], *([f"and {more} more replies left out"] if more > 0 else [])]
        shown = NotebookText([*self._above, *kept], self._done, self._rounds, self._status)
        if self._handle is None:
            self._handle = _display(shown)
        else:
            self._handle.update(shown)
        self._drawn = time.monotonic()
