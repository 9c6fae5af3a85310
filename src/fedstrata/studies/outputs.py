"""Write an outcome as files: outcome.json, a CSV table for each panel, and figures as PNG and SVG."""

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

from fedstrata._version import __version__
from fedstrata.common.errors import ConfigError
from fedstrata.diagnostics.panel import Panel
from fedstrata.report.page.drawing import Picture, save
from fedstrata.report.page.panels import PLAIN, panel_grid, panel_picture
from fedstrata.storage.atomic_files import atomic
from fedstrata.studies.base import Outcome, Study

COLUMNS = 13  # of a table in the terminal


def write_outcome(outcome: Outcome, name: str, study: Study, runs: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the outcome of a study.

    Args:
        outcome: of the study.
        name: of the study.
        study: with its settings.
        runs: folders by label.
        folder: created if it is missing; files of the same name are replaced.
    Returns:
        the files.
    """
    record = {
        "study": name,
        "settings": asdict(study),
        "runs": dict(runs),
        "version": __version__,
        "notes": list(outcome.notes),
        "numbers": outcome.numbers,
    }
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    files = [_text(folder / "outcome.json", text)]
    files += [_text(folder / f"{stem(panel.title)}.csv", csv_of(panel)) for panel in outcome.panels]
    return files + [file for picture in all_pictures(outcome) for file in save(picture, folder, (), ())]


@contextmanager
def writable_folder(folder: Path) -> Iterator[None]:
    """Create a folder; after an error inside the context, remove the created folders that are empty.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ConfigError(
                f"out is {str(folder)!r}, which cannot be written to ({error.strerror}); name another folder."
            ) from None
        yield
    except BaseException:
        for path in missing:
            with suppress(OSError):  # another process wrote into it, or it was never created
                path.rmdir()
        raise


def all_pictures(outcome: Outcome) -> list[Picture]:
    """Draw the panels of an outcome, and append its further pictures."""
    drawn = [panel_picture(panel, i, PLAIN, name=stem(panel.title)) for i, panel in enumerate(outcome.panels)]
    return [picture for picture in drawn if picture is not None] + list(outcome.pictures)


def csv_of(panel: Panel) -> str:
    """Write a panel as CSV: one row for each series and for the half-width of its band, one column for each ``x``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["series", *panel.x])
    for name, values in panel.series.items():
        writer.writerow([name, *("" if v is None else repr(float(v)) for v in values)])
        if panel.spread.get(name):
            writer.writerow([f"{name} (spread)", *("" if v is None else repr(float(v)) for v in panel.spread[name])])
    return text.getvalue()


def panel_table(panel: Panel) -> Table:
    """Build a terminal table of a panel; of many columns it shows an evenly spaced selection."""
    grid = panel_grid(panel)
    shown = sorted({0, *(round(k * (len(grid.heads) - 1) / (COLUMNS - 1)) for k in range(COLUMNS))})
    table = Table(
        box=box.SIMPLE_HEAD,
        title=panel.title,
        title_justify="left",
        caption=panel.y_name or None,
        caption_justify="left",
    )
    for k in shown:
        table.add_column(grid.heads[k].text, justify="left" if k == 0 else "right", overflow="fold")
    for row in grid.rows:
        table.add_row(*(row[k].text for k in shown))
    return table


def stem(title: str) -> str:
    """Turn a title into the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "panel"


def _text(path: Path, text: str) -> Path:
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path
