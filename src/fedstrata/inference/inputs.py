"""Read samples to predict from a file, a folder or a data set, prepared as the run's samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.call_syntax import bind, parse_call
from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.suggest import suggestion
from fedstrata.data.inputs import InputPreprocessor, Numbers, PreparedInputs
from fedstrata.data.inputs.base import Unknown
from fedstrata.data.io.columns import read_columns
from fedstrata.data.io.formats import read_npz
from fedstrata.data.io.samples import Samples
from fedstrata.data.location import Place
from fedstrata.data.registry import datasets, find_dataset
from fedstrata.data.source import Source
from fedstrata.data.sources.folders import PICTURES, children
from fedstrata.data.types import Task
from fedstrata.inference.finished_run import Finished
from fedstrata.runs.folder import read_manifest

Split = Literal["test", "train"]
SEEN = (
    "the run was trained on some of these samples: the score shows how well they were learned, not how well the model"
    " generalizes."
)
TABLES, ARRAYS, TEXTS = (".csv", ".tsv", ".parquet"), (".npy", ".npz"), (".txt",)


def preprocessor_of(finished: Finished) -> InputPreprocessor:
    """Return how the run's data set prepares samples; by default it accepts arrays as the model reads them."""
    if finished.federation.preprocessor is not None:
        return finished.federation.preprocessor
    task = finished.federation.task
    return Numbers(task.shape, task.classes if task.has_classes else 0, task.vocabulary)


def read(
    data: str | Path | Tensor | NDArray[Any],
    finished: Finished,
    *,
    client: int | None = None,
    split: Split | None = None,
    unknown: Unknown = "refuse",
) -> PreparedInputs:
    """Read samples to predict.

    Args:
        data: a file, a folder of images, a data set in call syntax, or an array.
        finished: the run.
        client: whose test samples to read, where the data set is the run's and clients have some.
        split: test or train; with it, ``data`` is a data set in call syntax.
        unknown: how to treat a word that no training row has.
    Raises:
        DataError: nothing there, nothing in it, or samples that the model was not trained to read.
        ConfigError: an unknown data set.
    """
    preprocessor = preprocessor_of(finished)
    if not isinstance(data, str | Path):
        return preprocessor.array(
            data.detach().cpu().numpy() if isinstance(data, Tensor) else np.asarray(data), None, "the array"
        )
    if not str(data):
        raise DataError("the name of the data is empty; give a file, a folder of images, or a data set such as digits.")
    path = Path(data)
    if split is None and path.exists():
        prepared = (
            _folder(path, preprocessor, finished.federation.task)
            if path.is_dir()
            else _file(path, preprocessor, unknown)
        )
        return _with_seen_note(prepared) if path.resolve() == _training_path(finished) else prepared
    if split is None and str(data) != finished.federation.name and not _is_data_set(str(data)):
        raise DataError(
            f"{data} does not exist; give a file, a folder of images, or a data set such as"
            f" digits.{suggestion(str(data), _names())}"
        )
    return data_set(str(data), finished, client, split or "test")


def _training_path(finished: Finished) -> Path | None:
    """Return the file or folder that the run's data set was read from; None where it names none."""
    config = finished.engine.parts.config
    if "federation" in read_manifest(finished.folder)["custom"]:
        return None
    call = parse_call(config.data)
    named = getattr(bind(call, find_dataset(call.name).factory, what="data"), "path", None)
    if not isinstance(named, str):
        return None
    try:
        return Place(None if config.data_root is None else Path(config.data_root)).file(call.name, named).resolve()
    except DataError:  # such as a name on a hub
        return None


def _with_seen_note(prepared: PreparedInputs) -> PreparedInputs:
    """Add the note that a score on training samples is not one on new samples."""
    return replace(prepared, notes=(*prepared.notes, SEEN))


def _names() -> list[str]:
    return [row.name for row in datasets()]


def _is_data_set(text: str) -> bool:
    try:
        return parse_call(text).name in _names()
    except ConfigError:
        return False


def _file(path: Path, preprocessor: InputPreprocessor, unknown: Unknown) -> PreparedInputs:
    kind = path.suffix.lower()
    if not path.stat().st_size:
        raise DataError(f"{path} is empty.")
    if kind in TABLES:
        return preprocessor.table(read_columns(path), str(path), unknown=unknown)
    if kind in PICTURES:
        return preprocessor.pictures([path], [path.name], None, str(path))
    if kind in ARRAYS:
        x, y = _arrays(path)
        return preprocessor.array(x, y, str(path))
    if kind in TEXTS:
        return preprocessor.texts(_lines(path), str(path))
    known = ", ".join([*TABLES, *ARRAYS, *TEXTS, *PICTURES[:3]])
    raise DataError(
        f"{path}: the file type follows from its suffix, and {kind or 'none'!r} is none of {known}. This model"
        f" accepts {preprocessor.accepts}."
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from error


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Read x, and y where there is one."""
    if path.suffix.lower() == ".npz":
        stored = read_npz(path)
        if "x" in stored:
            return stored["x"], stored.get("y")
        if len(stored) == 1:
            return next(iter(stored.values())), None
        raise DataError(
            f"{path} holds the arrays {', '.join(sorted(stored)[:12]) or 'none'}; it must have x, and y for a score."
        )
    try:
        with path.open("rb") as file:
            return np.load(file, allow_pickle=False), None
    except ValueError as error:
        raise DataError(
            f"{path} holds no readable array ({str(error).rstrip('.')}); it must be a complete array of numbers. Arrays"
            " of"
            " Python objects need pickle, which can run code, and are refused."
        ) from error
    except (OSError, EOFError) as error:
        raise DataError(f"{path} is damaged or not a .npy file ({error}).") from error


def _folder(path: Path, preprocessor: InputPreprocessor, task: Task) -> PreparedInputs:
    """Read all images below a folder; an image in a folder named after a class is labelled."""
    root = path.resolve()
    files, skipped = _pictures(root, root)
    if not files:
        raise DataError(f"{path} holds no image ({', '.join(PICTURES[:4])}, ...).")
    class_numbers = {label: number for number, label in enumerate(task.labels)}
    classes = [class_numbers.get(file.parent.name) if file.parent != root else None for file in files]
    labels = [number for number in classes if number is not None]
    prepared = preprocessor.pictures(
        files, [str(file.relative_to(root)) for file in files], labels if len(labels) == len(files) else None, str(path)
    )
    notes = list(prepared.notes)
    if skipped:
        notes.append(f"{path}: {skipped} files are not images and were skipped.")
    if 0 < len(labels) < len(files):
        notes.append(
            f"{path}: {len(files) - len(labels)} of {len(files)} images are in no folder named after a class;"
            " there is no score."
        )
    return PreparedInputs(prepared.samples, prepared.names, prepared.labelled, tuple(notes))


def _pictures(folder: Path, root: Path) -> tuple[list[Path], int]:
    """Return all images below a folder, and the number of other files."""
    images: list[Path] = []
    skipped = 0
    for entry in children(folder, root):
        if entry.is_dir():
            more, others = _pictures(entry, root)
            images, skipped = images + more, skipped + others
        elif entry.suffix.lower() in PICTURES:
            images.append(entry)
        else:
            skipped += 1
    return images, skipped


def data_set(text: str, finished: Finished, client: int | None, split: Split) -> PreparedInputs:
    """Read samples of a data set in call syntax.

    Raises:
        DataError: another task, or samples that are prepared differently from the run's.
    """
    config, federation = finished.engine.parts.config, finished.federation
    if text == federation.name:
        return _run_data(finished, client, split)
    call = parse_call(text)
    reader = bind(call, find_dataset(call.name).factory, what="data")
    source = reader.read(
        Place(
            None if config.data_root is None else Path(config.data_root),
            None if config.clients == "auto" else config.clients,
        )
    )
    if source.name == federation.name:
        return _run_data(finished, client, split)
    _same_task(source, finished)
    samples = (
        source.train if split == "train" else _required(source.test, f"{text} has no test set; use --split train.")
    )
    return _all(samples)


def _run_data(finished: Finished, client: int | None, split: Split) -> PreparedInputs:
    """Select from the run's data: the client's samples where a client is given and has some, else all."""
    federation = finished.federation
    if client is not None and split == "train":
        return _with_seen_note(
            _select(
                federation.train,
                federation.training(client),
                f"client {finished.client_label(client)} has no training sample.",
            )
        )
    if client is not None and (held := federation.testing(client)) is not None:
        return _select(*held, f"client {finished.client_label(client)} has no test samples.")
    missing = (
        f"{federation.name}: the run pooled its test set; give --client to read a client's test samples, or"
        " --split train."
    )
    return (
        _with_seen_note(_all(federation.train)) if split == "train" else _all(_required(federation.official, missing))
    )


@dataclass(frozen=True, eq=False)
class SelectedSamples:
    """Samples at selected positions."""

    samples: Samples
    index: Tensor

    @property
    def y(self) -> Tensor:
        """Labels, [N]."""
        return self.samples.y[self.index]

    @property
    def lazy(self) -> bool:
        """Whether taking reads files."""
        return self.samples.lazy

    def __len__(self) -> int:
        return len(self.index)

    def take(self, index: Tensor) -> Tensor:
        """See :class:`fedstrata.data.io.samples.Samples`."""
        return self.samples.take(self.index[index])


def _select(samples: Samples, index: Tensor, otherwise: str) -> PreparedInputs:
    if not len(index):
        raise DataError(otherwise)
    return PreparedInputs(SelectedSamples(samples, index), tuple(map(str, index.tolist())), labelled=True)


def _all(samples: Samples) -> PreparedInputs:
    return PreparedInputs(samples, tuple(map(str, range(len(samples)))), labelled=True)


def _required(samples: Samples | None, otherwise: str) -> Samples:
    if samples is None:
        raise DataError(otherwise)
    return samples


def _same_task(source: Source, finished: Finished) -> None:
    """Refuse samples that the model would misread."""
    ours, theirs = finished.federation.task, source.task
    other = (
        f"{source.name} prepares its samples differently from {finished.federation.name}; give the file itself, which"
        " is"
        " then read as in training."
    )
    if source.scale is not None:  # by statistics of its training rows
        raise DataError(other)
    for name, expected, actual in (
        ("a sample has the shape", ours.shape, theirs.shape),
        ("the vocabulary is", ours.vocabulary, theirs.vocabulary),
        ("the classes are", ours.labels[:20], theirs.labels[:20]),
        ("the task is", ours.kind, theirs.kind),
    ):
        if expected != actual:
            raise DataError(
                f"{source.name} is not what the model was trained for: {name} {actual} there and {expected} here."
            )
    if source.preprocessor != finished.federation.preprocessor:
        raise DataError(other)
