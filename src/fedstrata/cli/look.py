"""Commands that look: check, list, describe, report, bench."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Column, Table

from fedstrata.cli.catalogue import COLUMNS, rows
from fedstrata.cli.common import LOOSE, AsJson, Settings, app, console_for, read_for, read_settings, settings_help
from fedstrata.common.errors import ConfigError
from fedstrata.common.suggest import suggestion

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation
    from fedstrata.engine.assembly import RunComponents

COMPARISON = "comparison.json"
"""What the folder of a comparison holds, and that of a run does not."""


@app.command(context_settings=LOOSE, epilog=settings_help(), short_help="Would this run? Nothing is trained.")
def check(settings: Settings = None) -> None:
    """Check a configuration against data, model and method, without training."""
    config = read_settings(settings)
    from fedstrata.engine.assembly import assemble  # noqa: PLC0415
    from fedstrata.report.terminal import facts_table  # noqa: PLC0415
    from fedstrata.trackers import check as check_track  # noqa: PLC0415

    check_track(config.track)
    console = console_for()
    console.print(facts_table(facts_of(assemble(config)), title="this configuration can run"))


def tests_of(federation: Federation) -> Iterator[str]:
    """Who tests on what."""
    if federation.test is not None:
        yield f"{len(federation.test):,} samples on the server"
    if federation.own_test is not None:
        yield "each client its own split"


def facts_of(parts: RunComponents) -> dict[str, str]:
    """What a run would be made of."""
    federation, setup = parts.federation, parts.setup
    facts = {
        "method": str(parts.method),
        "data": (
            f"{federation.name}: {len(federation.train):,} training samples of shape {federation.task.shape},"
            f" {federation.task.classes} outputs"
        ),
        "partition": federation.partition.law,
        "clients": f"{federation.clients:,}, {setup.cohort} a round, {len(federation.heldout):,} kept out of training",
        "test": ", ".join(tests_of(federation)),
        "model": (
            f"{parts.config.model_for(federation.task)}, {parts.parameters:,} parameters in {len(setup.layout.groups)}"
            " layer groups"
        ),
        "rounds": str(setup.rounds),
    }
    notes = (*federation.notes, *parts.method.notes(setup))
    return facts | {f"note {place}": note for place, note in enumerate(notes, 1)}


@app.command("list", short_help="Methods, data sets, models, ...: a line each.")
def list_(
    what: Annotated[
        str, typer.Argument(metavar="methods|datasets|models|partitions|measures|studies|trackers|executors")
    ],
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """What is there, a line each."""
    if what not in COLUMNS:
        raise ConfigError(
            f"there is no list of {what!r}; it is one of {', '.join(COLUMNS)}.{suggestion(what, COLUMNS)}"
        )
    show_rows(rows(what), as_json=as_json)


def show_rows(rows: Sequence[Mapping[str, str]], *, as_json: bool) -> None:
    """A table, or one JSON line."""
    if as_json:
        print(json.dumps(list(rows)))
        return
    if not rows:
        console_for().print("none")
        return
    table = Table(*(Column(name, overflow="fold") for name in rows[0]), box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row.values())
    console_for().print(table)


@app.command(context_settings=LOOSE, epilog=settings_help(), short_help="What a method costs, by layer group.")
def describe(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help='A method or chain, such as "fedprox(mu=0.1) + fedavgm".')
    ],
    settings: Settings = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """What a method costs on a federation: parameters, state, bytes, FLOPs and memory, by layer group."""
    config = read_for(method, settings)
    from fedstrata.engine.describe import describe as cost  # noqa: PLC0415
    from fedstrata.report.cost_tables import as_plain, show  # noqa: PLC0415

    description = cost(config)
    if as_json:
        print(json.dumps(as_plain(description), allow_nan=False))
    else:
        show(description, console_for())


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN [RUN ...]", help="Run folders, or folders of comparisons.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where files go; default: the run folder of one run, ./report for several.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Tables, pictures and an HTML page on finished, or unfinished, runs, or on comparisons.

    Of several comparisons that differ in their partition alone, it is said where FedAvg gets better with more skew.
    """
    _refuse(folders, out)
    compared = [(folder / COMPARISON).is_file() for folder in folders]
    if all(compared):
        _report_comparisons(folders, out, as_json=as_json)
        return
    if any(compared):
        raise ConfigError(
            f"{str(folders[compared.index(True)])!r} is a comparison, and other folders are runs; report them one after"
            " the other."
        )
    from fedstrata.report.runs import report as write_report  # noqa: PLC0415
    from fedstrata.runs.result import Result  # noqa: PLC0415

    results = [Result.read(folder) for folder in folders]
    console = console_for(stderr=as_json)
    write_report(results, console, out)
    if as_json:
        print(json.dumps({result.name: result.summary for result in results}, allow_nan=False))


def _refuse(folders: Sequence[Path], out: Path | None) -> None:
    """What no report can be made of, or written to."""
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out is {str(out)!r}, which is a file; name a folder for the report.")
    places = [folder.resolve() for folder in folders]
    if twice := next((folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1), None):
        raise ConfigError(
            f"{str(twice)!r} is given more than once; a run that is counted twice is no second run. Give each folder"
            " once."
        )


def _report_comparisons(folders: Sequence[Path], out: Path | None, *, as_json: bool) -> None:
    """Write the reports of ``fedstrata compare`` again, from its folders; several folders give a joint part."""
    if out is not None:
        raise ConfigError(
            f"--out is for runs; the report of a comparison goes into its own folder {str(folders[0])!r}. Leave it out."
        )
    from dataclasses import asdict  # noqa: PLC0415

    from fedstrata.analysis.caveats import across  # noqa: PLC0415
    from fedstrata.compare.comparison import report as compared  # noqa: PLC0415
    from fedstrata.compare.comparison_file import read  # noqa: PLC0415

    console = console_for(stderr=as_json)
    told = [(comparison, compared(comparison, console)) for comparison in map(read, folders)]
    together = across(told)
    for flag in together:
        console.print(f"note: {flag.text}", soft_wrap=True)
    if as_json:
        each = [
            {"folder": str(c.folder), "answer": f.answer, "flags": [asdict(flag) for flag in f.flags]} for c, f in told
        ]
        print(
            json.dumps(
                each[0] if len(each) == 1 else {"comparisons": each, "flags": [asdict(flag) for flag in together]},
                allow_nan=False,
            )
        )


@app.command(short_help="Time the executors against a PyTorch loop.")
def bench(
    jobs: Annotated[
        str, typer.Option(help="Jobs: letters out of S (many small clients), M (classic CNN), L (ResNet-18).")
    ] = "SML",
    pairs: Annotated[int, typer.Option(min=5, help="Interleaved pairs of measurements; the median counts.")] = 7,
    workers: Annotated[int, typer.Option(min=1, help="Workers of threads and processes.")] = 2,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Time the executors against a bare PyTorch loop that does the same local steps on the same samples."""
    from fedstrata.bench import main as measure  # noqa: PLC0415

    measure(jobs=jobs, pairs=pairs, workers=workers, as_json=as_json)
