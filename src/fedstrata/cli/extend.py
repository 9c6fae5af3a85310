"""The commands cite and new."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.common import LOOSE, AsJson, Settings, app, read_for, settings_help


@app.command(context_settings=LOOSE, epilog=settings_help(), short_help="BibTeX of the parts that a run uses.")
def cite(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help='A method or chain, such as "fedprox(mu=0.1) + fedavgm".')
    ],
    settings: Settings = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Print BibTeX of the parts that a run uses.

    They are FedAvg, the method's pieces, the model, the data, the partition law, and fedstrata.
    """
    config = read_for(method, settings)
    from fedstrata.citations.cite import cite as find  # noqa: PLC0415
    from fedstrata.citations.cite import unpublished  # noqa: PLC0415

    citations, without = find(method, config), unpublished(method, config)
    if as_json:
        print(json.dumps({"citations": [asdict(c) for c in citations], "unpublished": without}))
        return
    for what, why in without.items():
        print(f"% {what}: nothing to cite ({why})")
    for citation in citations:
        print(f"\n% {citation.what}\n{citation.bibtex}")


@app.command(short_help="Write a package with a method, data set or measure.")
def new(
    kind: Annotated[str, typer.Argument(metavar="method|dataset|measure")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the class: letters and digits, such as FedMine.")],
    folder: Annotated[Path, typer.Option(help="Where the package's folder goes.")] = Path(),
) -> None:
    """Write a package with a method (data set, measure) that already runs, its tests, and its entry point."""
    from fedstrata.templates.generate import new as write  # noqa: PLC0415

    target = write(kind, name, folder)
    first = {"method": "method=", "dataset": "clients=6 data=", "measure": "measures="}[kind]
    print(f"{target}: {', '.join(sorted(path.name for path in target.iterdir()))}")
    print(f"next: cd {target} && pip install -e . && fedstrata run {first}{target.name} && pytest")
