"""Commands that use a result: predict, export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from fedstrata.cli.common import AsJson, app, console_for
from fedstrata.common.errors import ConfigError
from fedstrata.common.suggest import suggestion

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run; it is only read.")]
Client = Annotated[
    str | None,
    typer.Option(help="A client's number or name: the model that it uses itself. Default: the shared model."),
]
Root = Annotated[Path | None, typer.Option(help="Folder of the run's data, where they are not where the run had them.")]


@app.command(short_help="What a run's model says of further data.")
def predict(
    folder: Run,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="Table, picture, folder of pictures, .npy or .npz, .txt; or a data set: digits."
        ),
    ],
    client: Client = None,
    out: Annotated[Path | None, typer.Option(help="CSV file for the lines; default: stdout.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Of a data set: test or train. With --client and the run's own data: that client's."),
    ] = None,
    unknown: Annotated[str, typer.Option(help="A word that no training row has: refuse, or zeros.")] = "refuse",
    root: Root = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Predict: one line a sample with its class and probabilities, or its number.

    Where the data carry labels, a score follows.

    Samples are prepared as those that the model was trained on. Pixels of arrays are uint8; floats are read as the
    model reads them.
    """
    _one_of("split", split, ("test", "train"))
    _one_of("unknown", unknown, ("refuse", "zeros"))
    from fedstrata.inference import predict as tell  # torch would slow every --help down  # noqa: PLC0415

    found = tell(
        folder,
        data,
        client,
        split=cast('Literal["test", "train"] | None', split),
        unknown=cast('Literal["refuse", "zeros"]', unknown),
        root=root,
    )
    if out is not None:
        found.write(out)
    console = console_for(stderr=True)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if as_json:
        head = {"samples": len(found), "client": found.client, "score": found.score, "notes": list(found.notes)}
        print(json.dumps(head | ({"out": str(out)} if out else {"predictions": list(found.rows())}), allow_nan=False))
        return
    if out is None:
        print(found.to_csv(), end="")
    else:
        console_for().print(f"{len(found)} predictions: {out}", soft_wrap=True)
    if found.score is not None:
        said = ", ".join(
            f"{name.replace('_', ' ')} {value:.4f}" for name, value in found.score.items() if value is not None
        )
        (console if out is None else console_for()).print(f"score on {len(found)} samples: {said}", soft_wrap=True)


@app.command(short_help="A run's model as files for other programs.")
def export(
    folder: Run,
    client: Client = None,
    out: Annotated[Path | None, typer.Option(help="A new folder; default: export/RUN.")] = None,
    kind: Annotated[
        str, typer.Option("--format", help="safetensors (weights alone), torch-export, onnx (extra: onnx), or all.")
    ] = "torch-export",
    root: Root = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Export model.safetensors, signature.json, MODEL_CARD.md, and a program that needs no fedstrata.

    The program is model.pt2 or model.onnx.
    """
    _one_of("format", kind, ("safetensors", "torch-export", "onnx", "all"))
    from fedstrata.inference import export as write  # torch would slow every --help down  # noqa: PLC0415

    found = write(folder, out, client, cast('Literal["safetensors", "torch-export", "onnx", "all"]', kind), root=root)
    console = console_for(stderr=as_json)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if as_json:
        plain = {
            "folder": str(found.folder),
            "client": found.client,
            "files": dict(found.files),
            "difference": dict(found.difference),
        }
        print(json.dumps(plain | {"notes": list(found.notes)}, allow_nan=False))
        return
    console.print(f"{found.folder}: {', '.join(found.files)}", soft_wrap=True)
    console.print(
        f"outputs differ from the run's evaluation by at most {max(found.difference.values()):.1e} of the largest one",
        soft_wrap=True,
    )


def _one_of(option: str, given: str | None, known: Sequence[str]) -> None:
    """Refuse a value that the option does not take."""
    if given is not None and given not in known:
        raise ConfigError(f"--{option} is {given!r}; it is {' or '.join(known)}.{suggestion(given, known)}")
