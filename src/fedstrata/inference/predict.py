"""Predictions of a run on further data."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedstrata.common.errors import ConfigError, StateError
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece
from fedstrata.data.federation import Federation
from fedstrata.data.inputs.base import Unknown
from fedstrata.inference.finished_run import Who, finished, threads_kept
from fedstrata.inference.inputs import Split, intake_of, read
from fedstrata.storage.atomic_files import write_file


@dataclass(frozen=True)
class Predictions:
    """What a model says of samples.

    Attributes:
        names: one a sample: a row number, a file.
        labels: class names; () where targets are no classes.
        values: [N, classes] probabilities, or [N] numbers in the units of the data.
        truth: [N] classes or numbers, where the data carry them.
        score: metrics, where there is a truth; None where one is undefined.
        client: whose model it is; None for the shared one.
        notes: what a user must be told.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    values: Tensor
    truth: Tensor | None
    score: Mapping[str, float | None] | None
    client: int | None
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def predicted(self) -> list[str] | list[float]:
        """The class with the largest probability, or the number, of each sample."""
        if self.labels:
            return [self.labels[place] for place in self.values.argmax(1).tolist()]
        return [float(value) for value in self.values]

    def rows(self) -> Iterator[dict[str, Any]]:
        """A mapping a sample: name, predicted, then probability by class, then label and whether it is right (or the
        error).
        """
        for place, (name, told) in enumerate(zip(self.names, self.predicted, strict=True)):
            row: dict[str, Any] = {"name": name, "predicted": told}
            if self.labels:
                row |= {
                    f"p_{label}": float(p) for label, p in zip(self.labels, self.values[place].tolist(), strict=True)
                }
            if self.truth is not None and self.labels:
                label = self.labels[int(self.truth[place])]
                row |= {"label": label, "correct": int(label == told)}
            elif self.truth is not None:
                truth = float(self.truth[place])
                row |= {"label": truth, "error": float(self.values[place]) - truth}
            yield row

    def to_csv(self) -> str:
        """A line a sample, with a line of names above; numbers with six digits."""
        text = io.StringIO()
        table = None
        for row in self.rows():
            if table is None:
                table = csv.DictWriter(text, list(row), lineterminator="\n")
                table.writeheader()
            table.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
        return text.getvalue()

    def write(self, path: str | Path) -> Path:
        """Write :meth:`to_csv` into a file, in one step.

        Raises:
            ConfigError: the path is that of a folder.
            StateError: the disk refuses.
        """
        target = Path(path)
        if target.is_dir():
            raise ConfigError(
                f"out is {str(path)!r}, which is a folder; name a file for the predictions, such as predictions.csv."
            )
        write_file(target, [self.to_csv().encode()], "predictions")
        return target


def predict(
    run: str | Path,
    data: str | Path | Tensor | NDArray[Any],
    client: Who = None,
    *,
    split: Split | None = None,
    unknown: Unknown = "refuse",
    root: str | Path | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Piece | Method | None = None,
) -> Predictions:
    """What the model of a finished run says of samples, prepared as those that it was trained on.

    Args:
        run: the run folder.
        data: a table (.csv, .tsv, .parquet) with the run's columns, a picture or a folder of pictures, an array (.npy,
            .npz, or in memory), a text file with a text a line, or a data set in call syntax.
        client: None for the shared model; a number or name for the model that this client uses itself.
        split: of a data set in call syntax: test (of the run's own data set and a client: its own test samples) or
            train.
        unknown: "refuse" a word that no training row has, or read it as "zeros", as the run reads such words of its
            test rows.
        root: folder of the run's data, where they are not where the run had them.
        federation: again, where the run was given one.
        module: again, where the run was given one.
        method: again, where the run was given pieces instead of text.
    Raises:
        DataError: data that are not there, or that the model was not trained to read; the message names row and column.
        ConfigError: there is no such client or data set.
        StateError: see :func:`fedstrata.inference.load`.
    """
    with threads_kept():
        found = finished(run, root=root, federation=federation, module=module, method=method)
        who, task = found.number(client), found.federation.task
        taken = read(data, found, client=who, split=split, unknown=unknown)
        engine = found.engine
        outputs = engine.evaluator.predict(
            engine.worker, found.params(who), taken.samples, torch.arange(len(taken.samples))
        )
        if not bool(outputs.isfinite().all()):
            row = int((~outputs.isfinite().all(1)).nonzero()[0])
            raise StateError(
                f"the model's output for {taken.names[row]} is not finite; its numbers are far from those that it was"
                " trained on."
            )
        intake = intake_of(found)
        classes, numbers = task.has_classes, task.definition.targets == "numbers"
        values, truth = task.definition.predictions(outputs), taken.samples.y if taken.labelled else None
        if numbers:
            values, truth = intake.restore(values), None if truth is None else intake.restore(truth)
        score = None if truth is None else task.metrics(values[:, None] if numbers else outputs, truth)
    notes = (*found.notes, *found.told(who), *taken.notes)
    if found.looks_at_batches:
        notes += (
            "norms look at the batch: what is said of a sample hangs on the others beside it, up to 500 at a time.",
        )
    return Predictions(taken.names, task.labels if classes else (), values, truth, score, who, notes)
