"""Predict with a run's model on further data."""

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
from fedstrata.inference.finished_run import ClientRef, keep_threads, open_run
from fedstrata.inference.inputs import Split, preprocessor_of, read
from fedstrata.storage.atomic_files import write_file


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model.

    Attributes:
        names: one a sample: a row number, a file.
        labels: class names; () where targets are no classes.
        values: [N, classes] probabilities, or [N] numbers in the units of the data.
        truth: [N] classes or numbers, where the data carry them.
        score: metrics, where there is a truth; None where one is undefined.
        client: whose model it is; None for the shared one.
        notes: for the user.
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
        """The most probable class, or the number, of each sample."""
        if self.labels:
            return [self.labels[index] for index in self.values.argmax(1).tolist()]
        return [float(value) for value in self.values]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a mapping for each sample: name, predicted, probability by class, label, and correct (or the error)."""
        for i, (name, predicted) in enumerate(zip(self.names, self.predicted, strict=True)):
            row: dict[str, Any] = {"name": name, "predicted": predicted}
            if self.labels:
                row |= {f"p_{label}": float(p) for label, p in zip(self.labels, self.values[i].tolist(), strict=True)}
            if self.truth is not None and self.labels:
                label = self.labels[int(self.truth[i])]
                row |= {"label": label, "correct": int(label == predicted)}
            elif self.truth is not None:
                truth = float(self.truth[i])
                row |= {"label": truth, "error": float(self.values[i]) - truth}
            yield row

    def to_csv(self) -> str:
        """Format as CSV: a header, then a line for each sample; numbers have six digits."""
        text = io.StringIO()
        table = None
        for row in self.rows():
            if table is None:
                table = csv.DictWriter(text, list(row), lineterminator="\n")
                table.writeheader()
            table.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
        return text.getvalue()

    def write(self, path: str | Path) -> Path:
        """Write :meth:`to_csv` into a file, atomically.

        Raises:
            ConfigError: the path is a folder.
            StateError: the file cannot be written.
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
    client: ClientRef = None,
    *,
    split: Split | None = None,
    unknown: Unknown = "refuse",
    root: str | Path | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Piece | Method | None = None,
) -> Predictions:
    """Predict with the model of a finished run; samples are prepared as in training.

    Args:
        run: the run folder.
        data: a table (.csv, .tsv, .parquet) with the run's columns, an image or a folder of images, an array (.npy,
            .npz, or in memory), a text file with one text per line, or a data set in call syntax.
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
    with keep_threads():
        finished = open_run(run, root=root, federation=federation, module=module, method=method)
        client_id, task = finished.client_number(client), finished.federation.task
        prepared = read(data, finished, client=client_id, split=split, unknown=unknown)
        engine = finished.engine
        outputs = engine.evaluator.predict(
            engine.worker, finished.params(client_id), prepared.samples, torch.arange(len(prepared.samples))
        )
        if not bool(outputs.isfinite().all()):
            row = int((~outputs.isfinite().flatten(1).all(1)).nonzero()[0])
            raise StateError(
                f"the model's output for {prepared.names[row]} is not finite; its values are far from the"
                " training data."
            )
        preprocessor = preprocessor_of(finished)
        classes, numbers = task.has_classes, task.definition.targets == "numbers"
        values, truth = task.definition.predictions(outputs), prepared.samples.y if prepared.labelled else None
        if numbers:
            values, truth = preprocessor.restore(values), None if truth is None else preprocessor.restore(truth)
        score = None if truth is None else task.metrics(values[:, None] if numbers else outputs, truth)
    notes = (*finished.notes, *finished.notes_for(client_id), *prepared.notes)
    if finished.uses_batch_statistics:
        notes += (
            "norms look at the batch: a prediction depends on the other samples of its batch, up to 500 at a time.",
        )
    return Predictions(prepared.names, task.labels if classes else (), values, truth, score, client_id, notes)
