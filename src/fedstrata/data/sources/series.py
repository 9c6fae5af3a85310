"""Read time series: one series for each client, windows of past values, a later value as the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import torch

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.data.inputs.table import SeriesRows
from fedstrata.data.io.columns import column, read_columns
from fedstrata.data.io.normalization import Floats, Scaling, Sums
from fedstrata.data.io.samples import Windows
from fedstrata.data.location import Place, written
from fedstrata.data.source import Source
from fedstrata.data.types import Groups, Ints, Task


@dataclass(frozen=True)
class SeriesWindow:
    """How series are cut into samples.

    Attributes:
        window: past values in a sample, at least 1.
        horizon: steps from the last of them to the target, at least 1.
        test: the last share of every client's targets is the test set, in (0, 1); its windows may begin in the
            training time.
    """

    window: int
    horizon: int
    test: float

    def __post_init__(self) -> None:
        if self.window < 1 or self.horizon < 1 or not 0 < self.test < 1:
            raise ConfigError(
                f"series: window {self.window}, horizon {self.horizon}, test {self.test}; write window >= 1, horizon >="
                " 1 and 0 < test < 1."
            )


@dataclass(frozen=True)
class Series:
    """A long table: one row for each client and time.

    Values and targets are normalised by the clients' sums over their training targets; errors are in those standard
    deviations.

    Args:
        path: .csv, .tsv or .parquet.
        value: the column to forecast.
        client: the column that names the series.
        time: a column of numbers to sort by within a client; None keeps the file's order.
        window: past values a sample, in rows.
        horizon: rows ahead.
        test: last share of every client's targets for the test set.
    """

    path: str
    value: str
    client: str
    time: str | None = None
    window: int = 24
    horizon: int = 1
    test: float = 0.2

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        cut = SeriesWindow(self.window, self.horizon, self.test)
        file = place.file("series", self.path)
        columns = read_columns(file)
        values, owner = column(columns, self.value, file.name), column(columns, self.client, file.name)
        for name, cells in ((self.value, values), (self.client, owner)):
            if cells.missing.any():
                raise DataError(
                    f"{file.name}: column {name!r}, row {np.flatnonzero(cells.missing)[0]} is missing; fill it in or"
                    " remove the row."
                )
        if values.numbers is None:
            raise DataError(f"{file.name}: column {self.value!r} holds words; a series holds numbers.")
        names, codes = np.unique(owner.text(), return_inverse=True)
        when = np.arange(len(codes), dtype=np.float64)
        if self.time is not None:
            stamps = column(columns, self.time, file.name)
            if stamps.numbers is None or stamps.missing.any():
                raise DataError(
                    f"{file.name}: column {self.time!r} is not all numbers; give the time as numbers, or leave time out"
                    " and sort the file."
                )
            when = stamps.numbers
        order = np.lexsort((when, codes))
        sequences = np.split(values.numbers[order], np.cumsum(np.bincount(codes))[:-1])
        identity = (
            f"series({file.name}, value={self.value}, client={self.client}, time={self.time}, {cut})"
            f" {sha256(file.read_bytes()).hexdigest()}"
        )
        return replace(
            windows(written("series", self), sequences, tuple(map(str, names)), cut, self.value), identity=identity
        )


@dataclass(frozen=True)
class Eeg:
    """Four channels of a real electroencephalogram, 800 samples in 10 s each; a client is a channel.

    Source: the sample data that ship with matplotlib (``eeg.dat``, of its MRI-with-EEG example; its authors name no
        subject).

    Args:
        window: past values a sample; 16 are 0.2 s.
        horizon: samples ahead.
        test: last share of every channel for the test set.
    """

    window: int = 16
    horizon: int = 1
    test: float = 0.2

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        from matplotlib.cbook import get_sample_data  # matplotlib takes a second to import  # noqa: PLC0415

        cut = SeriesWindow(self.window, self.horizon, self.test)
        recorded = (
            np.fromfile(get_sample_data("eeg.dat", asfileobj=False), dtype="<f8").reshape(-1, 4).astype(np.float64)
        )
        return windows(f"eeg({cut})", list(recorded.T), ("channel 1", "channel 2", "channel 3", "channel 4"), cut)


def windows(
    identity: str, sequences: list[Floats], names: tuple[str, ...], cut: SeriesWindow, value: str = "value"
) -> Source:
    """Build a source from one sequence of values for each client; ``value`` names the column in further tables.

    Raises:
        DataError: no client has enough values for a training window.
    """
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in sequences])]).astype(np.int64)
    starts, owner, is_test = [], [], []
    for client, sequence in enumerate(sequences):
        count = len(sequence) - cut.window - cut.horizon + 1
        if count < 1:
            continue
        tested = min(int(cut.test * count + 0.5), count - 1)  # at least one window trains
        starts.append(offsets[client] + np.arange(count, dtype=np.int64))
        owner.append(np.full(count, client, dtype=np.int64))
        is_test.append(np.arange(count) >= count - tested)
    if not starts or not np.concatenate(is_test).any():
        longest = max(len(s) for s in sequences)
        raise DataError(
            f"{identity}: the longest series has {longest} values, too few for training and test windows; use a smaller"
            " window or horizon."
        )
    short = len(sequences) - len(starts)
    notes = (
        (f"series: {short} of {len(sequences)} series are shorter than window + horizon and have no sample.",)
        if short
        else ()
    )
    cuts = _Windows(
        identity,
        np.concatenate(sequences),
        np.concatenate(starts),
        np.concatenate(owner),
        np.concatenate(is_test),
        names,
        cut,
        value,
        notes,
    )
    return cuts.source(Scaling(np.zeros(1), np.ones(1), np.zeros(1, dtype=np.bool_)), scaled=False)


@dataclass(frozen=True, eq=False)
class _Windows:
    """All windows of all clients, in raw units."""

    identity: str
    values: Floats
    starts: Ints
    owner: Ints
    is_test: np.ndarray
    names: tuple[str, ...]
    cut: SeriesWindow
    value: str
    notes: tuple[str, ...]

    def source(self, scaling: Scaling, *, scaled: bool) -> Source:
        sequence = torch.from_numpy(scaling.apply(self.values[:, None])[:, 0].astype(np.float32))
        ahead = self.cut.window + self.cut.horizon - 1
        sets = []
        for mask in (~self.is_test, self.is_test):
            starts = torch.from_numpy(self.starts[mask])
            sets.append(Windows(sequence, starts, self.cut.window, sequence[starts + ahead]))
        groups = {"client": Groups(self.names, self.owner[~self.is_test], self.owner[self.is_test])}
        note = (
            f"series: values are in standard deviations: mean {scaling.mean[0]:.6g}, std {scaling.std[0]:.6g} of the"
            " training targets."
        )
        notes = (*self.notes, note) if scaled else self.notes
        task = Task("regression", (self.cut.window,), 1)
        preprocessor = SeriesRows(self.cut.window, self.cut.horizon, self.value, scaling) if scaled else None
        scale = None if scaled else self.scale
        return Source(
            self.identity,
            task,
            sets[0],
            sets[1],
            groups,
            natural=True,
            notes=notes,
            scale=scale,
            preprocessor=preprocessor,
        )

    def scale(self, parts: list[Ints]) -> Source:
        """Normalise by the sums of each client's training targets."""
        order = np.concatenate([np.flatnonzero(~self.is_test), np.flatnonzero(self.is_test)])
        targets = self.values[self.starts[order] + self.cut.window + self.cut.horizon - 1][:, None]
        return self.source(Scaling.from_sums((Sums.of(targets[part]) for part in parts), 1), scaled=True)
