"""Prepare rows of a table, encoded and standardised as the training rows; and windows of a series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.errors import DataError
from fedstrata.common.suggest import suggestion
from fedstrata.data.inputs.base import InputPreprocessor, Numbers, PreparedInputs, Unknown, prepare
from fedstrata.data.io.checks import finite_features, float32
from fedstrata.data.io.columns import Column, Columns, column
from fedstrata.data.io.encoding import Encoding
from fedstrata.data.io.normalization import Floats, Scaling

MISSING_LEVEL = "(missing)"  # the level of a missing word


@dataclass(frozen=True, eq=False)
class Rows(InputPreprocessor):
    """Rows of a table, read by the names of its columns.

    Attributes:
        encoding: the role of each column.
        numbers: numeric columns, in the order of the sample.
        words: categorical columns after them, each with its levels: one number for each level.
        scaling: of the numbers, and of the target as the last column.
        labels: class names; () where targets are no classes.
    """

    encoding: Encoding
    numbers: tuple[str, ...]
    words: tuple[tuple[str, tuple[str, ...]], ...]
    scaling: Scaling
    labels: tuple[str, ...]

    @property
    def accepts(self) -> str:
        """Describe the accepted input."""
        names = [*self.numbers, *(name for name, _ in self.words)]
        shown = ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
        return f"a table (.csv, .tsv, .parquet) with the columns {shown}; {self.encoding.label} too, for a score"

    def table(self, columns: Columns, where: str, *, unknown: Unknown = "refuse") -> PreparedInputs:
        """See :meth:`InputPreprocessor.table`."""
        numeric = [self._number(column(columns, name, where), name, where) for name in self.numbers]
        onehot = [self._word(column(columns, name, where), name, levels, where, unknown) for name, levels in self.words]
        rows = len(next(iter(columns.values())).missing)
        wide = np.stack([*numeric, np.zeros(rows)], 1)  # [N, numbers + 1]: the scaling ends with the target
        x = torch.from_numpy(float32(np.concatenate([self.scaling.apply(wide)[:, :-1], *onehot], 1)))
        finite_features(x, where)
        y = self._labels(columns[self.encoding.label], where) if self.encoding.label in columns else None
        prepared = prepare(x, y, len(self.labels), where)
        known_columns = {
            *self.numbers,
            *(name for name, _ in self.words),
            self.encoding.label,
            *self.encoding.drop,
            self.encoding.client,
        }
        ignored = [name for name in columns if name not in known_columns]
        notes = (
            (f"{where}: the columns {', '.join(ignored[:8])} did not exist in training and are ignored.",)
            if ignored
            else ()
        )
        return PreparedInputs(prepared.samples, prepared.names, prepared.labelled, notes)

    def _number(self, values: Column, name: str, where: str) -> Floats:
        if values.missing.any() and self.encoding.missing == "refuse":
            row = np.flatnonzero(values.missing)[0]
            raise DataError(
                f"{where}: column {name!r}, row {row} is missing; the model was trained without missing values"
                " (missing=refuse). Fill it in."
            )
        if values.numbers is not None:
            return values.numbers
        if values.missing.all():
            return np.full(len(values.missing), np.nan)
        row = np.flatnonzero(~values.missing)[0]
        row = next((r for r in np.flatnonzero(~values.missing) if not _is_number(str(values.text()[r]))), row)
        raise DataError(
            f"{where}: column {name!r}, row {row} is {str(values.text()[row])!r}; in training it held numbers."
        )

    def _word(self, values: Column, name: str, levels: tuple[str, ...], where: str, unknown: Unknown) -> Floats:
        if values.missing.any() and self.encoding.missing == "refuse":
            row = np.flatnonzero(values.missing)[0]
            raise DataError(
                f"{where}: column {name!r}, row {row} is missing; the model was trained without missing values"
                " (missing=refuse). Fill it in."
            )
        words = np.where(values.missing, MISSING_LEVEL, values.text())
        hot: NDArray[np.bool_] = words[:, None] == np.array(levels)[None, :]  # [N, levels]
        new = np.flatnonzero(~hot.any(1))
        if len(new) and unknown == "refuse":
            word = str(words[new[0]])
            raise DataError(
                f"{where}: column {name!r}, row {new[0]} is {word!r}, which no training row has ({len(new)} rows in"
                f" all);{suggestion(word, levels)} The levels are {', '.join(levels[:12])}. --unknown zeros encodes"
                " such words"
                " as none of these."
            )
        return hot.astype(np.float64)

    def _labels(self, values: Column, where: str) -> NDArray[Any] | None:
        name = self.encoding.label
        if values.missing.all():
            return None
        if values.missing.any():
            row = np.flatnonzero(values.missing)[0]
            raise DataError(
                f"{where}: label {name!r}, row {row} is missing; label every row for a score, or leave the column out."
            )
        if not self.labels:
            if values.numbers is None:
                raise DataError(f"{where}: label {name!r}, row 0 is {values.text()[0]!r}; it must hold numbers.")
            standard = self.encoding.target == "standard"
            return (values.numbers - self.scaling.mean[-1]) / self.scaling.std[-1] if standard else values.numbers
        class_numbers = {label: number for number, label in enumerate(self.labels)}
        texts = [str(text) for text in values.text()]
        wrong = next((row for row, text in enumerate(texts) if text not in class_numbers), None)
        if wrong is not None:
            raise DataError(
                f"{where}: label {name!r}, row {wrong} is {texts[wrong]!r}; the model's classes are"
                f" {', '.join(self.labels[:12])}.{suggestion(texts[wrong], self.labels)}"
            )
        return np.array([class_numbers[text] for text in texts], dtype=np.int64)

    def restore(self, values: Tensor) -> Tensor:
        """See :meth:`InputPreprocessor.restore`."""
        if self.labels or self.encoding.target != "standard":
            return values
        return values.double() * float(self.scaling.std[-1]) + float(self.scaling.mean[-1])

    def facts(self) -> dict[str, Any]:
        """See :meth:`InputPreprocessor.facts`."""
        count, flat = len(self.numbers), self.scaling.constant
        numbers = [
            {"column": name, "mean": float(self.scaling.mean[k]), "std": float(self.scaling.std[k])}
            | ({"constant": True} if flat[k] else {})
            for k, name in enumerate(self.numbers)
        ]
        target = {"mean": float(self.scaling.mean[count]), "std": float(self.scaling.std[count])}
        return {
            "kind": "table",
            "takes": self.accepts,
            "label": self.encoding.label,
            "missing": self.encoding.missing,
            "normalisation": {
                "rule": "(value - mean) / std; a missing number and a constant column become 0",
                "numbers": numbers,
            },
            "levels": [{"column": name, "levels": list(levels)} for name, levels in self.words],
            "target": target if not self.labels and self.encoding.target == "standard" else None,
        }


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class SeriesRows(InputPreprocessor):
    """Windows of the past values of a series.

    Attributes:
        window: values in a sample.
        horizon: steps ahead.
        value: name of the column.
        scaling: of values and targets.
    """

    window: int
    horizon: int
    value: str
    scaling: Scaling

    @property
    def accepts(self) -> str:
        """Describe the accepted input."""
        return (
            f"a table (.csv, .tsv, .parquet) of one series whose last {self.window} rows of {self.value!r} are read, "
            f"or an array (.npy) [N, {self.window}] in the units of the data"
        )

    def table(self, columns: Columns, where: str, *, unknown: Unknown = "refuse") -> PreparedInputs:
        """See :meth:`InputPreprocessor.table`; the forecast is ``horizon`` rows after the last one."""
        values = column(columns, self.value, where)
        if values.numbers is None or values.missing.any():
            raise DataError(f"{where}: column {self.value!r} has missing values or words; a series holds numbers.")
        if len(values.numbers) < self.window:
            raise DataError(f"{where} has {len(values.numbers)} rows; the model reads the last {self.window}.")
        return self.array(values.numbers[None, -self.window :], None, where)

    def array(self, x: NDArray[Any], y: NDArray[Any] | None, where: str) -> PreparedInputs:
        """See :meth:`InputPreprocessor.array`."""
        Numbers((self.window,), 0).check_shape(x, where)
        if x.dtype.kind not in "fiu":
            raise DataError(f"{where} holds {x.dtype}; it must hold numbers.")
        raw = torch.from_numpy(x.astype(np.float64))
        finite_features(raw, where)
        scaled = torch.from_numpy(float32((raw.numpy() - self.scaling.mean[0]) / self.scaling.std[0]))
        targets = None if y is None else (y.astype(np.float64) - self.scaling.mean[0]) / self.scaling.std[0]
        return prepare(scaled, targets, 0, where)

    def restore(self, values: Tensor) -> Tensor:
        """See :meth:`InputPreprocessor.restore`."""
        return values.double() * float(self.scaling.std[0]) + float(self.scaling.mean[0])

    def facts(self) -> dict[str, Any]:
        """See :meth:`InputPreprocessor.facts`."""
        numbers = {"mean": float(self.scaling.mean[0]), "std": float(self.scaling.std[0])}
        return {
            "kind": "series",
            "takes": self.accepts,
            "horizon": self.horizon,
            "normalisation": {"rule": "(value - mean) / std", **numbers},
            "target": numbers,
        }
