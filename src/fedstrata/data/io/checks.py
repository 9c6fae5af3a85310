"""Check labels and features when data are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.errors import DataError


def class_labels(values: NDArray[Any], classes: int, where: str) -> Tensor:
    """Check class labels and convert them to int64 [N].

    Args:
        values: [N] labels as read.
        classes: labels are 0 .. classes - 1.
        where: file or column, for messages.
    Raises:
        DataError: float or NaN labels, a wrong rank, or a label out of range; the message names the row and the value.
    """
    if values.ndim != 1:
        raise DataError(
            f"{where}: labels have shape {values.shape}; they must be one class number a sample, shape [N]."
        )
    if values.dtype.kind not in "iu":
        first = values[0] if len(values) else "nothing"
        raise DataError(
            f"{where}: labels are {values.dtype} (row 0 holds {first!s}); class numbers are integers in 0 to"
            f" {classes - 1}."
        )
    numbers = values.astype(np.int64)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= classes))
    if len(wrong):
        raise DataError(
            f"{where}: row {wrong[0]} has label {values[wrong[0]]} ({len(wrong)} rows in all are out of range); "
            f"labels are 0 to {classes - 1} for {classes} classes."
        )
    return torch.from_numpy(numbers)


def finite_features(x: Tensor, where: str) -> None:
    """Refuse NaN and infinity.

    Args:
        x: [N, ...] floats.
        where: for messages.
    Raises:
        DataError: names the first bad row and column (position in the sample).
    """
    if not x.is_floating_point() or bool(torch.isfinite(x).all()):
        return
    row, *column = (int(v) for v in torch.nonzero(~torch.isfinite(x))[0])
    value = x[(row, *column)].item()
    position = column[0] if len(column) == 1 else tuple(column)
    raise DataError(
        f"{where}: row {row}, column {position} is {value}; features are finite numbers. Remove the row, or fill the"
        " value in."
    )


def float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Convert values to float32.

    A value that is too large becomes infinite; :func:`finite_features` then names it.
    """
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def stratified(labels: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mark int(share * n_c + 0.5) samples of every class, drawn by ``rng``, in a mask [N].

    A class with one sample has none marked.
    """
    return mask_by(labels, lambda n: min(int(share * n + 0.5), n - 1), rng)


def mask_by(codes: NDArray[np.int64], count: Callable[[int], int], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mark ``count(n)`` random members of every code with n members."""
    mask = np.zeros(len(codes), dtype=np.bool_)
    for code in np.unique(codes):
        members = np.flatnonzero(codes == code)
        mask[rng.permutation(members)[: count(len(members))]] = True
    return mask
