"""Tables with a label column and, where there is one, a client column: binary, multiclass, regression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.common.errors import ConfigError, DataError, nearest
from fedstrata.common.random_streams import stream
from fedstrata.data.inputs.table import GAP, Rows
from fedstrata.data.io.checks import class_labels, float32, mask_by
from fedstrata.data.io.columns import Column, Columns, column, read_columns
from fedstrata.data.io.normalization import Floats, Scaling, Sums
from fedstrata.data.io.samples import Tensors
from fedstrata.data.location import Place, written
from fedstrata.data.sources.images import groups_by
from fedstrata.data.types import Groups, Ints, Source, Task

LEVELS = 1000  # a column of more words than this is an identifier
CLASSES = 100  # whole numbers of more values than this are a quantity
Kind = Literal["auto", "classification", "regression"]
Missing = Literal["refuse", "impute"]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Encoding:
    """How columns become a task.

    Attributes:
        label: the column to predict.
        client: the column that names the holder of a row, or None.
        kind: auto is classification for words and for at most 100 different whole numbers, regression otherwise.
        missing: refuse, or impute: numbers by the training mean, words as a level of their own.
        categorical: columns of numbers that are names.
        drop: columns that are not used.
        target: regression targets in standard deviations of the training targets, or raw.
    """

    label: str
    client: str | None = None
    kind: Kind = "auto"
    missing: Missing = "refuse"
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    target: Literal["standard", "raw"] = "standard"


@dataclass(frozen=True)
class Table:
    """A CSV or parquet file.

    Numbers are normalised by the clients' sums over what they train on; words become one column a level (levels of the
    training rows; a level that only the test rows have is all zeros).

    Args:
        path: .csv, .tsv or .parquet, absolute or relative to data.root.
        label: the column to predict.
        client: the column that names the holder of a row.
        kind: classification, regression, or auto.
        missing: refuse, or impute (numbers by the training mean, words as a level of their own).
        categorical: columns of numbers that are names, such as [zip].
        drop: columns that are not used.
        split: a column that holds train and test.
        tested: a second file that is the test set.
        test: share of every client's rows (without a client column: of every class's) for the test set, where neither
            split nor tested says it.
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
            raise ConfigError("data table: split and tested both say which rows are the test set; give one.")

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        file = place.file("table", self.path)
        columns, late, content = read_columns(file), None, sha256(file.read_bytes())
        how = Encoding(self.label, self.client, self.kind, self.missing, self.categorical, self.drop, self.target)
        if self.split:
            late = _split_column(column(columns, self.split, str(file)), self.split)
            how = replace(how, drop=(*how.drop, self.split))
        if self.tested:
            other = place.file("table", self.tested)
            second = read_columns(other)
            content.update(other.read_bytes())
            late = np.repeat([False, True], [len(next(iter(c.values())).missing) for c in (columns, second)])
            columns = {name: stacked(name, first, column(second, name, self.tested)) for name, first in columns.items()}
        identity = (
            f"table({file.name}, {how}, split={self.split}, tested={bool(self.tested)}, test={self.test})"
            f" {content.hexdigest()}"
        )
        return replace(encode(columns, how, late, self.test, written("table", self), file.name), identity=identity)


def _split_column(values: Column, name: str) -> Mask:
    words = np.char.lower(values.text())
    late = np.isin(words, ["test"])
    wrong = np.flatnonzero(~late & ~np.isin(words, ["train"]))
    if len(wrong):
        raise DataError(
            f"data table: column {name!r}, row {wrong[0]} is {values.text()[wrong[0]]!r}; a split column holds train or"
            " test."
        )
    return late


def stacked(name: str, first: Column, second: Column) -> Column:
    """The rows of two files, one after the other.

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


def encode(columns: Columns, how: Encoding, late: Mask | None, share: float, identity: str, where: str) -> Source:
    """From columns to a source that is normalised once the clients are known.

    Args:
        columns: by name, all of one length.
        how: which column is what.
        late: [N] True for test rows; None draws a fixed share.
        share: of every client's rows, or of every class's, for that draw.
        identity: name of the source.
        where: file, for messages.
    Raises:
        DataError: missing or unusable values; the message names column and row.
    """
    features = _features(columns, how, where)
    target, names = _target(column(columns, how.label, where), how, where)
    owner = None if how.client is None else _owner(column(columns, how.client, where), how.client, where)
    if late is None:
        cells = owner if owner is not None else target if names else np.zeros(len(target), dtype=np.int64)
        codes = np.unique(cells, return_inverse=True)[1].astype(np.int64)
        late = mask_by(codes, lambda n: min(int(share * n + 0.5), n - 1), stream(0, "table-test"))
    if late.all():
        raise DataError(f"{where}: all {len(late)} rows are test rows; a training set needs at least one.")
    if names and (unseen := np.setdiff1d(target[late], target[~late])).size:
        raise DataError(
            f"{where}: class {names[int(unseen[0])]!r} is in the test rows only; every class needs a training row."
        )
    numeric, onehot, levels = _matrices(features, late)
    numbers = tuple(name for name, values in features.items() if values.numbers is not None)
    task = Task(
        "classification" if names else "regression", (numeric.shape[1] + onehot.shape[1],), len(names) or 1, names
    )
    y = class_labels(target.astype(np.int64), len(names), where) if names else torch.from_numpy(float32(target))
    groups: dict[str, Groups] = {} if owner is None else {"client": groups_by(owner[~late], owner[late])}
    notes = (
        (
            f"table: {task.kind} of {how.label} over {len(names)} classes."
            if names
            else f"table: regression of {how.label}."
        ),
    )
    build = _Build(identity, task, numeric, onehot, y.numpy(), late, groups, numbers, levels, how, notes)
    return build.source(np.nan_to_num(numeric), y.numpy(), scaled=False)


def _features(columns: Columns, how: Encoding, where: str) -> dict[str, Column]:
    for name in (*how.drop, *how.categorical):
        column(columns, name, where)
    kept = {name: values for name, values in columns.items() if name not in (how.label, how.client, *how.drop)}
    if not kept:
        raise DataError(
            f"{where} has no feature column besides {how.label} and {how.client}.{nearest(how.label, columns)}"
        )
    for name, values in kept.items():
        if how.missing == "refuse" and values.missing.any():
            raise DataError(
                f"{where}: column {name!r}, row {np.flatnonzero(values.missing)[0]} is missing"
                f" ({int(values.missing.sum())} rows in all); use missing=impute or drop=[{name}]."
            )
        if values.words is not None or name in how.categorical:
            kept[name] = Column(values.missing, words=values.text())
            if (levels := len(np.unique(values.text()))) > LEVELS:
                raise DataError(
                    f"{where}: column {name!r} holds {levels} different words, which looks like an identifier;"
                    f" drop=[{name}]."
                )
    return kept


def _target(values: Column, how: Encoding, where: str) -> tuple[NDArray[np.float64] | Ints, tuple[str, ...]]:
    """Class numbers and names, or regression targets and ()."""
    if values.missing.any():
        raise DataError(
            f"{where}: label {how.label!r}, row {np.flatnonzero(values.missing)[0]} is missing; a label cannot be"
            " imputed, remove the row."
        )
    whole = values.numbers is None or bool((values.numbers == np.floor(values.numbers)).all())
    kind = how.kind
    if kind == "auto":
        few = len(np.unique(values.text())) <= CLASSES
        kind = "classification" if values.words is not None or (whole and few) else "regression"
    if kind == "regression":
        if values.numbers is None:
            raise DataError(
                f"{where}: label {how.label!r}, row 0 is {values.text()[0]!r}; a regression needs numbers, or say"
                " kind=classification."
            )
        return values.numbers, ()
    if not whole:
        assert values.numbers is not None
        row = np.flatnonzero(values.numbers != np.floor(values.numbers))[0]
        raise DataError(
            f"{where}: label {how.label!r}, row {row} is {values.numbers[row]}; classes are whole numbers or words, or"
            " say kind=regression."
        )
    known = np.unique(
        values.numbers if values.numbers is not None else values.text()
    )  # numbers in their own order, not as text
    names = tuple(str(int(k)) if values.numbers is not None else str(k) for k in known)
    if not 2 <= len(names) <= LEVELS:
        raise DataError(
            f"{where}: label {how.label!r} has {len(names)} different values; 2 to {LEVELS} classes are possible, or"
            " say kind=regression."
        )
    return (
        np.unique(values.text() if values.numbers is None else values.numbers, return_inverse=True)[1].astype(np.int64),
        names,
    )


def _owner(values: Column, name: str, where: str) -> Ints:
    if values.missing.any():
        raise DataError(
            f"{where}: client {name!r}, row {np.flatnonzero(values.missing)[0]} is missing; every row needs a holder."
        )
    return values.text()  # type: ignore[return-value]  # names; groups_by turns them into numbers


def _matrices(
    features: dict[str, Column], late: Mask
) -> tuple[Floats, Floats, tuple[tuple[str, tuple[str, ...]], ...]]:
    """Numbers [N, K] with NaN for gaps, one-hot words [N, L], and the levels of each column of words."""
    numeric = [values.numbers for values in features.values() if values.numbers is not None]
    hot, levels = [], []
    for name, values in features.items():
        if values.words is not None:
            words = np.where(values.missing, GAP, values.words)
            known = np.unique(words[~late])
            levels.append((name, tuple(map(str, known))))
            hot.append((words[:, None] == known[None, :]).astype(np.float64))
    empty = np.zeros((len(late), 0))
    return np.stack(numeric, 1) if numeric else empty, np.concatenate(hot, 1) if hot else empty, tuple(levels)


@dataclass(frozen=True, eq=False)
class _Build:
    """What is known before the clients are: raw numbers, one-hot words, raw targets."""

    identity: str
    task: Task
    numeric: Floats
    onehot: Floats
    y: np.ndarray
    late: Mask
    groups: dict[str, Groups]
    columns: tuple[str, ...]
    levels: tuple[tuple[str, tuple[str, ...]], ...]
    how: Encoding
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
        mask = torch.from_numpy(self.late)
        train, test = Tensors(x[~mask], labels[~mask]), Tensors(x[mask], labels[mask])
        scale = None if scaled else self.scale
        tested = test if len(test) else None  # clients of one or two rows give none
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
        order = np.concatenate([np.flatnonzero(~self.late), np.flatnonzero(self.late)])
        values = np.concatenate([self.numeric, self.y[:, None].astype(np.float64)], 1)
        scaling = Scaling.from_sums((Sums.of(values[order[part]]) for part in parts), values.shape[1])
        result = scaling.apply(values)
        flat = [name for name, constant in zip(self.columns, scaling.constant, strict=False) if constant]
        notes = [f"table: column {name!r} is constant (or missing) in the training rows and is 0." for name in flat]
        y = self.y
        if self.task.kind == "regression" and self.how.target == "standard":
            y = float32(result[:, -1])
            notes.append(
                f"table: targets are in standard deviations: mean {scaling.mean[-1]:.6g}, std {scaling.std[-1]:.6g} of"
                " the training rows."
            )
        preprocessor = Rows(self.how, self.columns, self.levels, scaling, self.task.labels)
        return self.source(result[:, :-1], y, scaled=True, notes=tuple(notes), preprocessor=preprocessor)
