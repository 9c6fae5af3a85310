"""Draw grids of images: rows and columns of small images with labels and a number below each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.report.page import data_table
from fedstrata.report.page.data_table import DataTable, Head
from fedstrata.report.page.drawing import Picture
from fedstrata.report.page.text import counted, loose, plain, short
from fedstrata.studies.outputs import stem

CELL, GAP = 0.72, 0.14  # of an image and of the space below it, in inches
LEFT, TOP = 1.5, 0.75  # for labels and the title


def image_grid(
    title: str,
    rows: Sequence[Sequence[Tensor | None]],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    values: Sequence[Sequence[float | None]] | None = None,
    what: str = "",
) -> Picture:
    """Draw many images as one figure, each with its number.

    Args:
        title: a few words; it also names the files.
        rows: images [C, H, W] in [0, 1], C 1 or 3, of one size; None leaves a cell empty.
        row_labels: one for each row.
        column_labels: one for each column.
        values: a number for each image, written below it; default none.
        what: the number's name and unit.

    >>> import torch
    >>> image_grid("Two", [[torch.zeros(1, 4, 4), None]], ["a"], ["left", "right"]).size[0] > 2
    True
    """
    assert len(rows) == len(row_labels), "one label for each row"
    assert all(len(row) == len(column_labels) for row in rows), "one label for each column"
    numbers = values or [[None] * len(column_labels) for _ in rows]
    known = [v for row in numbers for v in row if v is not None]
    range_text = f"; {what} from {loose(min(known))} to {loose(max(known))}" if known else ""
    heads = [Head("row", "what the row is of", words=True), *(Head(short(c, 24)) for c in column_labels)]
    cells = [
        [data_table.text_cell(short(label, 40), label), *(data_table.number_cell(loose(v), v) for v in row)]
        for label, row in zip(row_labels, numbers, strict=True)
    ]
    size = (LEFT + (CELL + GAP) * len(column_labels), TOP + (CELL + 2 * GAP) * len(rows))
    alt = (
        f"{plain(title)}: {counted(len(rows), 'row', 'rows')} of"
        f" {counted(len(column_labels), 'image', 'images')}{range_text}."
    )
    draw = partial(_draw, rows=rows, row_labels=row_labels, column_labels=column_labels, values=numbers)
    return Picture(
        stem(title), plain(title), alt, draw, DataTable(plain(what or title), heads, cells, sort=False), size
    )


def _draw(
    figure: Figure,
    *,
    rows: Sequence[Sequence[Tensor | None]],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    values: Sequence[Sequence[float | None]],
) -> None:
    axes = figure.subplots()
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            if image is not None:
                axes.imshow(
                    _array(image),
                    extent=(x, x + 1 - GAP, y + 1 - GAP, y),
                    interpolation="nearest",
                    vmin=0,
                    vmax=1,
                    cmap="gray",
                )
            if (value := values[y][x]) is not None:
                axes.text(x + (1 - GAP) / 2, y + 1 - GAP / 2, loose(value), ha="center", va="center", fontsize=6.5)
    axes.set_xlim(0, len(column_labels))
    axes.set_ylim(len(rows), 0)
    axes.set_aspect("equal")
    axes.xaxis.tick_top()
    axes.set_xticks(
        [x + (1 - GAP) / 2 for x in range(len(column_labels))], [short(c, 12) for c in column_labels], fontsize=8
    )
    axes.set_yticks([y + (1 - GAP) / 2 for y in range(len(rows))], [short(r, 22) for r in row_labels], fontsize=8)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _array(image: Tensor) -> NDArray[np.float32]:
    """Return [H, W] grey or [H, W, 3] values in [0, 1]."""
    array = np.asarray(image.detach().clamp(0, 1).permute(1, 2, 0).numpy(), dtype=np.float32)
    return array[..., 0] if array.shape[-1] == 1 else array
