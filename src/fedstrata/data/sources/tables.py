"""Read tables with a label column and an optional client column: binary, multiclass, regression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.random_streams import stream
from fedstrata.common.suggest import suggestion
from fedstrata.data.inputs.table import MISSING_LEVEL, Rows
from fedstrata.data.io.checks import class_labels, float32, mask_by
from fedstrata.data.io.columns import Column, Columns, column, read_columns
from fedstrata.data.io.encoding import Encoding, Kind, Missing
from fedstrata.data.io.normalization import Floats, Scaling, Sums
from fedstrata.data.io.samples import Tensors
from fedstrata.data.location import Place, written
from fedstrata.data.source import Source
from fedstrata.data.sources.images import groups_by
from fedstrata.data.types import Groups, Ints, Task

LEVELS = 1000  # a column of more words than this is an identifier
CLASSES = 100  # whole numbers of more values than this are a quantity
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Table:
    """A CSV or parquet file.

    Numbers are normalised by the clients' sums over their training rows; a column of words becomes one column for each
    level of the training rows (a level that only test rows have is all zeros).

    Args:
        path: .csv, .tsv or .parquet, absolute or relative to data.root.
        label: the column to predict.
        client: the column that names the holder of a row.
        kind: classification, regression, or auto.
        missing: refuse, or impute (numbers by the training mean, words as a separate level).
        categorical: columns of numbers that are names, such as [zip].
        drop: columns that are not used.
        split: a column that holds train and test.
        tested: a second file that is the test set.
        test: share of every client's rows (without a client column: of every class's) for the test set, where neither
            split nor tested is set.
        target: regression targets in standard deviations of the training targets ("standard"), or "raw".
    """

    path: str
    label: str
    client: str | None = None
    kind: Kind = "auto"
    missing: Missing = "refuse"
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    split: str | None = None
    tested: str | None = None
    test: float = 0.2
    target: Literal["standard", "raw"] = "standard"

    def __post_init__(self) -> None:
        if not 0 < self.test < 1:
            raise ConfigError(f"data table: test is {self.test}; it is a share of rows, in (0, 1), such as 0.2.")
        if self.split and self.tested:
            raise ConfigError("data table: split and tested both define the test set; give one.")

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        file = place.file("table", self.path)
        columns, is_test, content = read_columns(file), None, sha256(file.read_bytes())
        encoding = Encoding(self.label, self.client, self.kind, self.missing, self.categorical, self.drop, self.target)
        if self.split:
            is_test = _split_column(column(columns, self.split, str(file)), self.split)
            encoding = replace(encoding, drop=(*encoding.drop, self.split))
        if self.tested:
            other = place.file("table", self.tested)
            second = read_columns(other)
            content.update(other.read_bytes())
            is_test = np.repeat([False, True], [len(next(iter(c.values())).missing) for c in (columns, second)])
            columns = {name: stacked(name, first, column(second, name, self.tested)) for name, first in columns.items()}
        identity = (
            f"table({file.name}, {encoding}, split={self.split}, tested={bool(self.tested)}, test={self.test})"
            f" {content.hexdigest()}"
        )
        return replace(
            encode(columns, encoding, is_test, self.test, written("table", self), file.name), identity=identity
        )


def _split_column(values: Column, name: str) -> Mask:
    words = np.char.lower(values.text())
    is_test = np.isin(words, ["test"])
    wrong = np.flatnonzero(~is_test & ~np.isin(words, ["train"]))
    if len(wrong):
        raise DataError(
            f"data table: column {name!r}, row {wrong[0]} is {values.text()[wrong[0]]!r}; a split column holds train or"
            " test."
        )
    return is_test


def stacked(name: str, first: Column, second: Column) -> Column:
    """Concatenate a column of two files.

    Raises:
        DataError: numbers in one file and words in the other.
    """
    missing = np.concatenate([first.missing, second.missing])
    if first.numbers is not None and second.numbers is not None:
        return Column(missing, numbers=np.concatenate([first.numbers, second.numbers]))
    if first.words is not None and second.words is not None:
        return Column(missing, words=np.concatenate([first.words, second.words]))
    raise DataError(
        f"data table: column {name!r} holds numbers in one file and words in the other; make them alike or"
        f" drop=[{name}]."
    )


def encode(
    columns: Columns, encoding: Encoding, is_test: Mask | None, share: float, identity: str, where: str
) -> Source:
    """Encode columns as a source, which is normalised once the clients are known.

    Args:
        columns: by name, all of one length.
        encoding: the role of each column.
        is_test: [N] True for test rows; None draws a fixed share.
        share: of every client's rows, or of every class's, for that draw.
        identity: name of the source.
        where: file, for messages.
    Raises:
        DataError: missing or unusable values; the message names column and row.
    """
    features = _features(columns, encoding, where)
    target, names = _target(column(columns, encoding.label, where), encoding, where)
    owner = None if encoding.client is None else _owner(column(columns, encoding.client, where), encoding.client, where)
    if is_test is None:
        cells = owner if owner is not None else target if names else np.zeros(len(target), dtype=np.int64)
        codes = np.unique(cells, return_inverse=True)[1].astype(np.int64)
        is_test = mask_by(codes, lambda n: min(int(share * n + 0.5), n - 1), stream(0, "table-test"))
    if is_test.all():
        raise DataError(f"{where}: all {len(is_test)} rows are test rows; a training set needs at least one.")
    if names and (unseen := np.setdiff1d(target[is_test], target[~is_test])).size:
        raise DataError(
            f"{where}: class {names[int(unseen[0])]!r} is in the test rows only; every class needs a training row."
        )
    numeric, onehot, levels = _matrices(features, is_test)
    numbers = tuple(name for name, values in features.items() if values.numbers is not None)
    task = Task(
        "classification" if names else "regression", (numeric.shape[1] + onehot.shape[1],), len(names) or 1, names
    )
    y = class_labels(target.astype(np.int64), len(names), where) if names else torch.from_numpy(float32(target))
    groups: dict[str, Groups] = {} if owner is None else {"client": groups_by(owner[~is_test], owner[is_test])}
    notes = (
        (
            f"table: {task.kind} of {encoding.label} over {len(names)} classes."
            if names
            else f"table: regression of {encoding.label}."
        ),
    )
    table = _UnscaledTable(
        identity, task, numeric, onehot, y.numpy(), is_test, groups, numbers, levels, encoding, notes
    )
    return table.source(np.nan_to_num(numeric), y.numpy(), scaled=False)


def _features(columns: Columns, encoding: Encoding, where: str) -> dict[str, Column]:
    for name in (*encoding.drop, *encoding.categorical):
        column(columns, name, where)
    kept = {
        name: values
        for name, values in columns.items()
        if name not in (encoding.label, encoding.client, *encoding.drop)
    }
    if not kept:
        raise DataError(
            f"{where} has no feature column besides {encoding.label} and {encoding.client}."
            f"{suggestion(encoding.label, columns)}"
        )
    for name, values in kept.items():
        if encoding.missing == "refuse" and values.missing.any():
            raise DataError(
                f"{where}: column {name!r}, row {np.flatnonzero(values.missing)[0]} is missing"
                f" ({int(values.missing.sum())} rows in all); use missing=impute or drop=[{name}]."
            )
        if values.words is not None or name in encoding.categorical:
            kept[name] = Column(values.missing, words=values.text())
            if (levels := len(np.unique(values.text()))) > LEVELS:
                raise DataError(
                    f"{where}: column {name!r} holds {levels} different words, which looks like an identifier;"
                    f" drop=[{name}]."
                )
    return kept


def _target(values: Column, encoding: Encoding, where: str) -> tuple[NDArray[np.float64] | Ints, tuple[str, ...]]:
    """Class numbers and names, or regression targets and ()."""
    if values.missing.any():
        raise DataError(
            f"{where}: label {encoding.label!r}, row {np.flatnonzero(values.missing)[0]} is missing; labels are not"
            " imputed, remove the row."
        )
    whole = values.numbers is None or bool((values.numbers == np.floor(values.numbers)).all())
    kind = encoding.kind
    if kind == "auto":
        few = len(np.unique(values.text())) <= CLASSES
        kind = "classification" if values.words is not None or (whole and few) else "regression"
    if kind == "regression":
        if values.numbers is None:
            raise DataError(
                f"{where}: label {encoding.label!r}, row 0 is {values.text()[0]!r}; a regression needs numbers; else"
                " set"
                " kind=classification."
            )
        return values.numbers, ()
    if not whole:
        assert values.numbers is not None
        row = np.flatnonzero(values.numbers != np.floor(values.numbers))[0]
        raise DataError(
            f"{where}: label {encoding.label!r}, row {row} is {values.numbers[row]}; classes are whole numbers or"
            " words; else"
            " set kind=regression."
        )
    known = np.unique(
        values.numbers if values.numbers is not None else values.text()
    )  # numbers in numeric order, not as text
    names = tuple(str(int(k)) if values.numbers is not None else str(k) for k in known)
    if not 2 <= len(names) <= LEVELS:
        raise DataError(
            f"{where}: label {encoding.label!r} has {len(names)} different values; 2 to {LEVELS} classes are possible;"
            " else"
            " set kind=regression."
        )
    return (
        np.unique(values.text() if values.numbers is None else values.numbers, return_inverse=True)[1].astype(np.int64),
        names,
    )


def _owner(values: Column, name: str, where: str) -> Ints:
    if values.missing.any():
        raise DataError(
            f"{where}: client {name!r}, row {np.flatnonzero(values.missing)[0]} is missing; every row needs a client."
        )
    return values.text()  # type: ignore[return-value]  # names; groups_by turns them into numbers


def _matrices(
    features: dict[str, Column], is_test: Mask
) -> tuple[Floats, Floats, tuple[tuple[str, tuple[str, ...]], ...]]:
    """Return numbers [N, K] with NaN where missing, one-hot words [N, L], and the levels of each column of words."""
    numeric = [values.numbers for values in features.values() if values.numbers is not None]
    hot, levels = [], []
    for name, values in features.items():
        if values.words is not None:
            words = np.where(values.missing, MISSING_LEVEL, values.words)
            known = np.unique(words[~is_test])
            levels.append((name, tuple(map(str, known))))
            hot.append((words[:, None] == known[None, :]).astype(np.float64))
    empty = np.zeros((len(is_test), 0))
    return np.stack(numeric, 1) if numeric else empty, np.concatenate(hot, 1) if hot else empty, tuple(levels)


@dataclass(frozen=True, eq=False)
class _UnscaledTable:
    """A table before its clients are known: raw numbers, one-hot words, raw targets."""

    identity: str
    task: Task
    numeric: Floats
    onehot: Floats
    y: np.ndarray
    is_test: Mask
    groups: dict[str, Groups]
    columns: tuple[str, ...]
    levels: tuple[tuple[str, tuple[str, ...]], ...]
    encoding: Encoding
    notes: tuple[str, ...]

    def source(
        self,
        numeric: Floats,
        y: np.ndarray,
        *,
        scaled: bool,
        notes: tuple[str, ...] = (),
        preprocessor: Rows | None = None,
    ) -> Source:
        x = torch.from_numpy(float32(np.concatenate([numeric, self.onehot], 1)))
        labels = torch.from_numpy(y)
        mask = torch.from_numpy(self.is_test)
        train, test = Tensors(x[~mask], labels[~mask]), Tensors(x[mask], labels[mask])
        scale = None if scaled else self.scale
        tested = test if len(test) else None  # clients with one or two rows have none
        return Source(
            self.identity,
            self.task,
            train,
            tested,
            self.groups,
            bool(self.groups),
            notes=self.notes + notes,
            scale=scale,
            preprocessor=preprocessor,
        )

    def scale(self, parts: list[Ints]) -> Source:
        """Normalise by the sums of ``parts``: each client's training positions, into train followed by test."""
        order = np.concatenate([np.flatnonzero(~self.is_test), np.flatnonzero(self.is_test)])
        values = np.concatenate([self.numeric, self.y[:, None].astype(np.float64)], 1)
        scaling = Scaling.from_sums((Sums.of(values[order[part]]) for part in parts), values.shape[1])
        result = scaling.apply(values)
        constant_columns = [name for name, constant in zip(self.columns, scaling.constant, strict=False) if constant]
        notes = [
            f"table: column {name!r} is constant (or missing) in the training rows and is 0."
            for name in constant_columns
        ]
        y = self.y
        if not self.task.has_classes and self.encoding.target == "standard":
            y = float32(result[:, -1])
            notes.append(
                f"table: targets are in standard deviations: mean {scaling.mean[-1]:.6g}, std {scaling.std[-1]:.6g} of"
                " the training rows."
            )
        preprocessor = Rows(self.encoding, self.columns, self.levels, scaling, self.task.labels)
        return self.source(result[:, :-1], y, scaled=True, notes=tuple(notes), preprocessor=preprocessor)
