"""Commands that train: run, resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstrata.cli.common import LOOSE, AsJson, Plain, Settings, app, observed, read_settings, run_config, settings_help
from fedstrata.config.config import KEYS, Config

if TYPE_CHECKING:
    from rich.console import Console

    from fedstrata.runs.result import Result


@app.command(context_settings=LOOSE, epilog=settings_help())
# flags of a command line
def run(settings: Settings = None, as_json: AsJson = False, plain: Plain = False) -> None:  # noqa: FBT002
    """Train a federation. Without arguments: FedAvg on digits, within a minute."""
    config = read_settings(settings)
    from fedstrata.runs.run import run as train  # torch would slow every --help down  # noqa: PLC0415

    with observed(as_json=as_json, plain=plain) as (console, observer, interrupt):
        result = train(config, observers=(observer,), stop=interrupt)
    finish(result, config, console, as_json=as_json)


@app.command(short_help="Go on with a run that was stopped.")
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    previous: Annotated[  # noqa: FBT002
        bool, typer.Option("--previous", help="Go on from the checkpoint before the last one.")
    ] = False,
    executor: Annotated[str | None, typer.Option(help="Another executor than the run's own.")] = None,
    workers: Annotated[int | None, typer.Option(help="Another number of workers.")] = None,
    as_json: AsJson = False,  # noqa: FBT002
    plain: Plain = False,  # noqa: FBT002
) -> None:
    """Go on with a run, to the same model as if it had not been interrupted."""
    from fedstrata.runs.run import resume as go_on  # noqa: PLC0415

    config = run_config(folder)
    if executor is not None:
        KEYS["executor"].read(executor)
    with observed(as_json=as_json, plain=plain) as (console, observer, interrupt):
        result = go_on(
            folder, previous=previous, executor=executor, workers=workers, observers=(observer,), stop=interrupt
        )
    finish(result, config, console, as_json=as_json)


def finish(result: Result, config: Config, console: Console, *, as_json: bool) -> None:
    """Write the files for readers and print the result."""
    from fedstrata.report.files import write  # noqa: PLC0415
    from fedstrata.report.terminal import result_table  # noqa: PLC0415

    write(result, result.federation or config.federation())
    console.print(result_table(result))
    if as_json:
        print(json.dumps(result.summary, allow_nan=False))
