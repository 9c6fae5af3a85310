"""Show the progress of a run: a bar on a terminal, an output of the cell in a notebook, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from fedstrata.common.events import Observer
from fedstrata.report.progress.notebook import NotebookProgress, in_notebook
from fedstrata.report.progress.terminal import progress

__all__ = ["progress", "shown"]


@contextmanager
def shown(wanted: bool | None = None) -> Iterator[tuple[Observer, ...]]:  # what users give as progress=  # noqa: FBT001
    """Yield the observers that show a run which was started from Python.

    Args:
        wanted: None shows it in a notebook and nowhere else; True also elsewhere, on stderr; False shows nothing.
    """
    if wanted is False or (wanted is None and not in_notebook()):
        yield ()
    elif in_notebook():
        cell = NotebookProgress()
        try:
            yield (cell,)
        finally:
            cell.close()
    else:
        with progress(Console(stderr=True, markup=False, highlight=False)) as observer:
            yield (observer,)
