"""Read columns of a CSV or parquet file: numbers or words, with missing values.

The reader is small and our own code, and every machine reads the same values.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.common.errors import DataError
from fedstrata.common.suggest import suggestion

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # compared in lower case
EXACT = float(2**53)


@dataclass(frozen=True, eq=False)
class Column:
    """One column.

    Attributes:
        missing: [N] bool.
        numbers: [N] float64, NaN where missing; None for a column of words.
        words: [N] str, "" where missing; None for a column of numbers.
    """

    missing: NDArray[np.bool_]
    numbers: NDArray[np.float64] | None = None
    words: NDArray[np.str_] | None = None

    def text(self) -> NDArray[np.str_]:
        """Return the words, or the numbers as short text (3, not 3.0), [N]."""
        if self.words is not None:
            return self.words
        assert self.numbers is not None
        return np.array(["" if np.isnan(v) else str(int(v)) if v == int(v) else repr(float(v)) for v in self.numbers])


Columns = Mapping[str, Column]


def read_columns(path: Path) -> dict[str, Column]:
    """Read a .csv, .tsv or .parquet file.

    Raises:
        DataError: another suffix, a damaged file, ragged rows, or an infinite number; the message names row and column.
    """
    if path.suffix in (".csv", ".tsv"):
        return _csv(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    raise DataError(f"{path}: tables are read from .csv, .tsv and .parquet files; convert it to one of these.")


def column(columns: Columns, name: str, where: str) -> Column:
    """Look up a column by name.

    Raises:
        DataError: there is none; the message has the nearest names.
    """
    if name not in columns:
        raise DataError(
            f"{where} has no column {name!r}.{suggestion(name, columns)} It has {', '.join(list(columns)[:12])}."
        )
    return columns[name]


def _csv(path: Path) -> dict[str, Column]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
            head = next(reader, [])
            rows = []
            for row in reader:
                if len(row) != len(head) and row:
                    raise DataError(
                        f"{path}: line {reader.line_num} has {len(row)} values for {len(head)} columns; quote values"
                        " that hold a comma."
                    )
                if row:
                    rows.append(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as a table ({error}); it must be a UTF-8 file that begins with a line of column"
            " names."
        ) from error
    if len(set(head)) != len(head) or not rows:
        twice = sorted({name for name in head if head.count(name) > 1})
        raise DataError(
            f"{path}: {f'column {twice[0]!r} is named twice' if twice else 'there is no data row'}; a table is a line"
            " of names and rows below."
        )
    return {
        name: _from_words(np.array(values), name, path)
        for name, values in zip(head, zip(*rows, strict=True), strict=True)
    }


def _from_words(values: NDArray[np.str_], name: str, path: Path | str) -> Column:
    words = np.char.strip(values)
    missing = np.isin(np.char.lower(words), list(MISSING))
    try:
        numbers = np.where(missing, "nan", words).astype(np.float64)
    except ValueError:
        return Column(missing, words=np.where(missing, "", words))
    if missing.all():
        return Column(missing, words=np.where(missing, "", words))
    return _numbers(numbers, name, path)


def _numbers(numbers: NDArray[np.float64], name: str, path: Path | str) -> Column:
    if np.isinf(numbers).any():
        raise DataError(
            f"{path}: column {name!r}, row {np.flatnonzero(np.isinf(numbers))[0]} is infinite; replace it, or leave it"
            " empty with missing=impute."
        )
    return Column(np.isnan(numbers), numbers=numbers)


def arrow(path: Path) -> Any:
    """Read a parquet file as a pyarrow table.

    Raises:
        DataError: pyarrow is not installed, or a damaged file.
    """
    try:
        import pyarrow as pa  # an extra  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow: pip install 'fedstrata[text]'.") from error
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is damaged or not a parquet file ({error}); fetch it again.") from error


def _parquet(path: Path) -> dict[str, Column]:
    table = arrow(path)
    if not table.num_rows:
        raise DataError(f"{path} has no row.")
    return arrow_columns(table, str(path))


def arrow_columns(table: Any, where: str) -> dict[str, Column]:
    """Read the columns of a pyarrow table.

    Raises:
        DataError: a column that holds neither numbers, words nor true/false.
    """
    return {name: _from_arrow(table.column(name), name, where) for name in table.column_names}


def _from_arrow(values: Any, name: str, path: str) -> Column:
    import pyarrow as pa  # an extra; it is there, or the table would not be  # noqa: PLC0415

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    listed = values.to_pylist()
    gaps = np.array([value is None for value in listed])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Column(gaps, words=np.array(["" if value is None else value for value in listed]))
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        return _numbers(np.array([np.nan if value is None else float(value) for value in listed]), name, path)
    if pa.types.is_null(kind):
        return Column(gaps, words=np.full(len(gaps), ""))
    raise DataError(
        f"{path}: column {name!r} holds {kind}; numbers, words and true/false are read. Convert it, or drop=[{name}]."
    )
