"""Report on run folders: a table, the rounds, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedstrata.analysis.findings import findings
from fedstrata.analysis.grouping import group_runs
from fedstrata.common.errors import FedstrataError
from fedstrata.config.config import Config
from fedstrata.data.statistics.facts import Facts, facts_of
from fedstrata.report.figures import curve
from fedstrata.report.files import rounds_csv, write
from fedstrata.report.page import write_page, write_pictures
from fedstrata.report.terminal import comparison, result_table, rounds_table
from fedstrata.runs.result import Result, manifest

PAGE, PICTURES = "report.html", "pictures"


def report(results: Sequence[Result], console: Console, out: Path | None = None) -> list[Path]:
    """Print tables and write files.

    Args:
        results: read from run folders, at least one.
        console: for the tables.
        out: folder for files; default the run folder of one run, ./report for several.
    Returns:
        the files written: a table of rounds a run (CSV), curve.png, report.html with its pictures (PNG and SVG, in a
        separate folder), and for a single run clients.csv and partition.png.
    """
    alone = results[0] if len(results) == 1 else None
    folder = out or (alone.folder if alone and alone.folder else Path("report"))
    folder.mkdir(parents=True, exist_ok=True)
    console.print(result_table(alone) if alone else comparison(results))
    if alone:
        console.print(rounds_table(alone))
    for result in results:
        for note in result.notes:
            console.print(f"note: {result.name}: {note}", soft_wrap=True)
    facts = None
    if alone:
        made, facts = _of_one(alone, folder, console)
        files = [rounds_csv(alone, folder / "rounds.csv"), *made]
    else:
        files = [
            rounds_csv(result, folder / f"rounds-{name}.csv")
            for name, result in zip(_names(results), results, strict=True)
        ]
        files.append(curve(results, folder / "curve.png"))
    page, pictures = _page(results, facts, folder)
    console.print("files: " + ", ".join(str(file) for file in files), soft_wrap=True)
    console.print(f"report: {page}, its {len(pictures)} pictures in {folder / PICTURES}", soft_wrap=True)
    return [*files, page, *pictures]


def _page(results: Sequence[Result], facts: Facts | None, folder: Path) -> tuple[Path, list[Path]]:
    """Write the page on these runs, and its pictures."""
    gathered_runs = group_runs(results, facts)
    result = findings(gathered_runs)
    return write_page(gathered_runs, result, folder / PAGE), write_pictures(gathered_runs, result, folder / PICTURES)


def _names(results: Sequence[Result]) -> list[str]:
    """Return file names that differ even where run folders in two places have the same name."""
    names = [result.name for result in results]
    return [name if names.count(name) == 1 else f"{name}-{place}" for place, name in enumerate(names, 1)]


def _of_one(result: Result, folder: Path, console: Console) -> tuple[list[Path], Facts | None]:
    """Write the files that need the federation, and return its facts.

    Where its data are missing, only the curve is written, and the reason is printed.
    """
    assert result.folder is not None, "a result that was read has a folder"
    if "federation" in manifest(result.folder).get("custom", ()):
        console.print(
            "note: clients.csv and partition.png are not written again: the run was given a federation from Python",
            soft_wrap=True,
        )
        return [curve([result], folder / "curve.png")], None
    try:
        federation = Config.read(result.folder / "config.toml").federation()
        return write(result, federation, folder), facts_of(federation)
    except FedstrataError as error:
        console.print(f"note: clients.csv and partition.png are not written again: {error}", soft_wrap=True)
        return [curve([result], folder / "curve.png")], None
