"""The command that studies finished runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.common import AsJson, app, console_for


@app.command(short_help="What a trained model has become, and what its updates give away.")
def study(
    what: Annotated[
        str,
        typer.Argument(
            metavar="STUDY", help='A study, such as "sharpness" or "inversion(images=2)"; see `fedstrata list studies`.'
        ),
    ],
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN [RUN ...]", help="Folders of finished runs; they are only read.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for outcome.json, tables and pictures; default: study/STUDY.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the runs' data, where they are not where the runs had them.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Study finished runs: flatness, layers, gradients. Their folders are only read."""
    from fedstrata.studies import find  # torch would slow every --help down  # noqa: PLC0415
    from fedstrata.studies import study as look  # noqa: PLC0415
    from fedstrata.studies.outputs import panel_table  # noqa: PLC0415

    name, chosen = find(what)
    folder = out or Path("study") / name
    outcome = look(chosen, folders, out=folder, root=root, name=name)
    console = console_for(stderr=as_json)
    for note in outcome.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if as_json:
        print(
            json.dumps(
                {"study": name, "folder": str(folder), "notes": list(outcome.notes), "numbers": outcome.numbers},
                allow_nan=False,
            )
        )
        return
    console.print(chosen.text, soft_wrap=True)
    for panel in outcome.panels:
        console.print(panel_table(panel))
    console.print(f"numbers, tables and pictures: {folder}", soft_wrap=True)
