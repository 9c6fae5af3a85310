"""Prepare further samples as the training samples were: the base class, and plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.errors import DataError
from fedstrata.data.io.checks import class_labels, finite_features, float32
from fedstrata.data.io.columns import Columns
from fedstrata.data.io.samples import Samples, Tensors

Unknown = Literal["refuse", "zeros"]


@dataclass(frozen=True, eq=False)
class PreparedInputs:
    """Samples that are ready for the model.

    Attributes:
        samples: as the model reads them; ``y`` holds zeros where they carry no label.
        names: one a sample: a row number, a file.
        labelled: whether ``y`` was given; predictions can then be scored.
        notes: for the user.
    """

    samples: Samples
    names: tuple[str, ...]
    labelled: bool
    notes: tuple[str, ...] = ()


class InputPreprocessor:
    """Prepare further samples. A data set overrides the methods of the forms that it accepts.

    The other forms are refused.
    """

    @property
    def accepts(self) -> str:
        """Describe the accepted input, as the end of a sentence."""
        return "arrays (.npy, .npz) as the model reads them"

    def table(self, columns: Columns, where: str, *, unknown: Unknown = "refuse") -> PreparedInputs:
        """Prepare the columns of a CSV or parquet file; ``unknown`` decides about words that no training row has."""
        self._refuse(where, "a table")

    def pictures(
        self, files: Sequence[Path], names: Sequence[str], labels: Sequence[int] | None, where: str
    ) -> PreparedInputs:
        """Prepare picture files; ``labels`` are class numbers, where all of them are known."""
        self._refuse(where, "a picture" if len(files) == 1 else "a folder of pictures")

    def array(self, x: NDArray[Any], y: NDArray[Any] | None, where: str) -> PreparedInputs:
        """Prepare an array [N, ...] and, where given, its labels [N]."""
        self._refuse(where, "an array")

    def texts(self, lines: Sequence[str], where: str) -> PreparedInputs:
        """Prepare texts, one for each sample."""
        self._refuse(where, "a text")

    def facts(self) -> dict[str, Any]:
        """Describe, as plain JSON, how a sample is prepared before the model reads it."""
        return {"takes": self.accepts}

    def restore(self, values: Tensor) -> Tensor:
        """Convert predictions of a regression to the units of the data."""
        return values

    def _refuse(self, where: str, form: str) -> NoReturn:
        raise DataError(f"{where} is {form}; this model accepts {self.accepts}.")


@dataclass(frozen=True)
class Numbers(InputPreprocessor):
    """Arrays that are passed on unchanged: floats of the sample's shape, or tokens.

    Attributes:
        shape: of one sample.
        classes: of the task; 0 where targets are no classes.
        vocabulary: above 0, samples are tokens below this number.
    """

    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0

    @property
    def accepts(self) -> str:
        """Describe the accepted input."""
        what = f"tokens below {self.vocabulary}" if self.vocabulary else "floats, as the model reads them"
        return (
            f"arrays (.npy, or .npz with x and, for a score, y) of shape [N, {', '.join(map(str, self.shape))}], {what}"
        )

    def array(self, x: NDArray[Any], y: NDArray[Any] | None, where: str) -> PreparedInputs:
        """See :meth:`InputPreprocessor.array`."""
        self.check_shape(x, where)
        values = tokens(x, self.vocabulary, where) if self.vocabulary else self._floats(x, where)
        return prepare(values, y, self.classes, where)

    def check_shape(self, x: NDArray[Any], where: str) -> None:
        """Refuse another shape, or an empty array.

        Raises:
            DataError: the message has both shapes.
        """
        if tuple(x.shape[1:]) != self.shape or x.ndim < 2 or not len(x):
            raise DataError(
                f"{where} has shape {list(x.shape)}; this model reads [N, {', '.join(map(str, self.shape))}] with at"
                " least one sample."
            )

    def _floats(self, x: NDArray[Any], where: str) -> Tensor:
        if x.dtype.kind != "f":
            raise DataError(f"{where} holds {x.dtype}; this model accepts {self.accepts}.")
        values = torch.from_numpy(float32(x))
        finite_features(values, where)
        return values

    def facts(self) -> dict[str, Any]:
        """See :meth:`InputPreprocessor.facts`."""
        return {"kind": "tokens" if self.vocabulary else "numbers", "takes": self.accepts, "normalisation": None}


def prepare(x: Tensor, y: NDArray[Any] | None, classes: int, where: str) -> PreparedInputs:
    """Pair samples in memory with their labels: class numbers below ``classes``, or targets where that is 0.

    Raises:
        DataError: another number of labels than samples, or labels that are invalid.
    """
    names = tuple(str(row) for row in range(len(x)))
    if y is None:
        return PreparedInputs(
            Tensors(x, torch.zeros(len(x), dtype=torch.int64 if classes else torch.float32)), names, labelled=False
        )
    if y.ndim != 1 or len(y) != len(x):
        raise DataError(
            f"{where}: y has shape {list(y.shape)} for {len(x)} samples; it must be one label a sample, shape [N]."
        )
    if classes:
        return PreparedInputs(Tensors(x, class_labels(y, classes, where)), names, labelled=True)
    if y.dtype.kind not in "fiu" or not np.isfinite(y).all():
        raise DataError(f"{where}: targets are {y.dtype} or not finite; they must be finite numbers.")
    return PreparedInputs(Tensors(x, torch.from_numpy(float32(y))), names, labelled=True)


def tokens(x: NDArray[Any], vocabulary: int, where: str) -> Tensor:
    """Check tokens and convert them to int64.

    Raises:
        DataError: values that are not integers below ``vocabulary``; the message names the row.
    """
    if x.dtype.kind not in "iu":
        raise DataError(f"{where}: vocabulary is {vocabulary}, and x holds {x.dtype}; tokens are integers.")
    wrong = np.argwhere((x < 0) | (x >= vocabulary))
    if len(wrong):
        raise DataError(
            f"{where}: row {wrong[0][0]} holds token {x[tuple(wrong[0])]}; tokens are 0 to {vocabulary - 1}."
        )
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64))
