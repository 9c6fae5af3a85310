"""An outcome as files: outcome.json, a CSV table a panel, and pictures as PNG and SVG."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile

from rich import box
from rich.table import Table

from fedstrata import __version__
from fedstrata.common.errors import ConfigError
from fedstrata.diagnostics.panel import Panel
from fedstrata.report.files import atomic
from fedstrata.report.page.drawing import Picture, save
from fedstrata.report.page.panels import PLAIN, panel_grid, panel_picture
from fedstrata.studies.base import Outcome, Study

COLUMNS = 13
"""Of a table in the terminal."""


def written(outcome: Outcome, name: str, study: Study, runs: Mapping[str, str], folder: Path) -> list[Path]:
    """Write what a study found.

    Args:
        outcome: of it.
        name: of the study.
        study: with its settings.
        runs: folders by label.
        folder: is made where it is missing; files of the same name are replaced.
    Returns:
        the files.
    """
    kept = {
        "study": name,
        "settings": asdict(study),
        "runs": dict(runs),
        "version": __version__,
        "notes": list(outcome.notes),
        "numbers": outcome.numbers,
    }
    text = json.dumps(kept, indent=1, allow_nan=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    files = [_text(folder / "outcome.json", text)]
    files += [_text(folder / f"{stem(panel.title)}.csv", csv_of(panel)) for panel in outcome.panels]
    return files + [file for picture in drawn(outcome) for file in save(picture, folder, (), ())]


@contextmanager
def place(folder: Path) -> Iterator[None]:
    """A folder that can be written to while this is open; where it fails inside, folders that were made for it go
    again, if they are empty.

    Raises:
        ConfigError: nothing can be written there.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ConfigError(
                f"out is {str(folder)!r}, where nothing can be written ({error.strerror}); name a folder of yours."
            ) from None
        yield
    except BaseException:
        for path in missing:
            with suppress(OSError):  # another's file is in it by now, or it was never made
                path.rmdir()
        raise


def drawn(outcome: Outcome) -> list[Picture]:
    """The pictures of an outcome: those of its panels, then its own."""
    found = [panel_picture(panel, place, PLAIN, name=stem(panel.title)) for place, panel in enumerate(outcome.panels)]
    return [picture for picture in found if picture is not None] + list(outcome.pictures)


def csv_of(panel: Panel) -> str:
    """A panel as a table: a row a series, a column for each of ``x``, and the half-width of its band where it has
    one.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["series", *panel.x])
    for name, values in panel.series.items():
        writer.writerow([name, *("" if v is None else repr(float(v)) for v in values)])
        if panel.spread.get(name):
            writer.writerow([f"{name} (spread)", *("" if v is None else repr(float(v)) for v in panel.spread[name])])
    return text.getvalue()


def panel_table(panel: Panel) -> Table:
    """A panel for the terminal; evenly spaced columns where there are very many."""
    grid = panel_grid(panel)
    kept = sorted({0, *(round(k * (len(grid.heads) - 1) / (COLUMNS - 1)) for k in range(COLUMNS))})
    table = Table(
        box=box.SIMPLE_HEAD,
        title=panel.title,
        title_justify="left",
        caption=panel.y_name or None,
        caption_justify="left",
    )
    for k in kept:
        table.add_column(grid.heads[k].text, justify="left" if k == 0 else "right", overflow="fold")
    for row in grid.rows:
        table.add_row(*(row[k].text for k in kept))
    return table


def stem(title: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "panel"


def _text(path: Path, text: str) -> Path:
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path
