"""Tabulate and draw the labels of a federation's clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedstrata.common.errors import DataError
from fedstrata.data.federation import Federation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 100  # clients in a picture
LABELS = 20  # clients that are named on its axis


def label_table(federation: Federation, clients: Sequence[int]) -> Tensor:
    """Count the training samples of each class for the given clients.

    Args:
        federation: any; only these clients are derived.
        clients: ids, at least one.
    Returns:
        int64 [len(clients), classes]; one column where targets are no classes.
    Raises:
        DataError: no client.
    """
    if not clients:
        raise DataError("label_table: no client was given; give at least one id.")
    return torch.stack([federation.counts(client) for client in clients])


def partition_picture(federation: Federation, path: Path | str, clients: Sequence[int] | None = None) -> None:
    """Draw the samples of each class by client: a heat map over bars of sizes.

    The colours (cividis) are safe for colour-blind readers.

    Args:
        federation: any.
        path: file to write; .png, .svg or .pdf.
        clients: ids to show, at most 100; default the first 100.
    Raises:
        DataError: more than 100 clients.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # matplotlib takes a second to import  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    shown = list(range(min(SHOWN, federation.clients))) if clients is None else list(clients)
    if len(shown) > SHOWN:
        raise DataError(f"partition picture: {len(shown)} clients were given; at most {SHOWN} can be distinguished.")
    table = label_table(federation, shown)
    figure = Figure(figsize=(max(5.0, 0.09 * len(shown) + 3), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    image = upper.imshow(table.T.numpy(), aspect="auto", cmap="cividis", interpolation="nearest", origin="lower")
    figure.colorbar(image, ax=upper, label="training samples")
    upper.set_ylabel("class" if federation.task.has_classes else "all")
    names = federation.task.labels
    if 0 < len(names) <= 20:
        upper.set_yticks(
            range(len(names)), [name[:14] for name in names], parse_math=False
        )  # a name with dollar signs is not a formula
    lower.bar(range(len(shown)), table.sum(1).tolist(), color="#0072B2")
    lower.set_ylabel("samples")
    lower.set_xlabel("client" if len(shown) == federation.clients else f"client ({len(shown)} of {federation.clients})")
    _name_clients(lower, [federation.client_name(client) for client in shown], named=federation.named)
    upper.set_title(f"{federation.name}: {federation.partition.law}", fontsize=9, parse_math=False)
    figure.savefig(path, dpi=120, metadata={"Software": None} if str(path).endswith(".png") else None)


def _name_clients(axes: Axes, names: Sequence[str], *, named: bool) -> None:
    """Write numbers horizontally, names vertically and cut; at most LABELS of them."""
    step = -(-len(names) // LABELS)
    shown = [name if len(name) <= 14 else f"{name[:13]}…" for name in names[::step]]
    axes.set_xticks(range(0, len(names), step), shown, rotation=90 if named else 0, fontsize=8, parse_math=False)
