"""The command doctor."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedstrata.cli.common import LOOSE, AsJson, Settings, app, console_for, read_settings, settings_help

Quick = Annotated[
    bool, typer.Option("--quick", help="Leave out what reads every sample (duplicates) or the clock (timings).")
]


@app.command(
    context_settings=LOOSE,
    epilog=settings_help(),
    short_help="What my federation looks like, what is wrong with it, and what to compare.",
)
# flags of a command line
def doctor(settings: Settings = None, quick: Quick = False, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Skew in numbers and words, problems of the data, costs, and methods that deserve a run, with reasons.

    Advice before measurement.
    """
    config = read_settings(settings)
    from fedstrata.common.allocator import keep_freed_blocks  # noqa: PLC0415
    from fedstrata.doctor import examine  # torch would slow every --help down  # noqa: PLC0415
    from fedstrata.doctor.show import show  # noqa: PLC0415

    keep_freed_blocks()
    found = examine(config, quick=quick, given=tuple(settings or ()))
    if as_json:
        print(json.dumps(found.as_dict(), allow_nan=False))
    else:
        show(found, console_for())
