"""What a prediction is asked for: a file, a folder, or a data set, read as samples of the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.call_syntax import bind, parse_call
from fedstrata.common.errors import ConfigError, DataError, nearest
from fedstrata.data.inputs import InputPreprocessor, Numbers, PreparedInputs
from fedstrata.data.inputs.base import Unknown
from fedstrata.data.io.columns import read_columns
from fedstrata.data.io.formats import read_npz
from fedstrata.data.io.samples import Samples
from fedstrata.data.location import Place
from fedstrata.data.registry import datasets, find_dataset
from fedstrata.data.sources.folders import PICTURES, children
from fedstrata.data.types import Source, Task
from fedstrata.inference.finished_run import Finished
from fedstrata.runs.folder import read_manifest

Split = Literal["test", "train"]
SEEN = (
    "the run was trained on samples of these: the score says how well they were learned, not how well the model does on"
    " others."
)
TABLES, ARRAYS, TEXTS = (".csv", ".tsv", ".parquet"), (".npy", ".npz"), (".txt",)


def intake_of(found: Finished) -> InputPreprocessor:
    """How the run's data set prepares samples; one that does not say takes arrays as the model reads them."""
    if found.federation.intake is not None:
        return found.federation.intake
    task = found.federation.task
    return Numbers(task.shape, task.classes if task.has_classes else 0, task.vocabulary)


def read(
    data: str | Path | Tensor | NDArray[Any],
    found: Finished,
    *,
    client: int | None = None,
    split: Split | None = None,
    unknown: Unknown = "refuse",
) -> PreparedInputs:
    """Samples to predict.

    Args:
        data: a file, a folder of pictures, a data set in call syntax, or an array.
        found: the run.
        client: whose own test samples are meant, where the data set is the run's own and clients have some.
        split: test or train, of a data set in call syntax; given, ``data`` is one.
        unknown: what a word that no training row has becomes.
    Raises:
        DataError: nothing there, nothing in it, or samples that the model was not trained to read.
        ConfigError: an unknown data set.
    """
    intake = intake_of(found)
    if not isinstance(data, str | Path):
        return intake.array(
            data.detach().cpu().numpy() if isinstance(data, Tensor) else np.asarray(data), None, "the array"
        )
    if not str(data):
        raise DataError(
            "the name of the data is empty; give a file, a folder of pictures, or a data set such as digits."
        )
    path = Path(data)
    if split is None and path.exists():
        taken = _folder(path, intake, found.federation.task) if path.is_dir() else _file(path, intake, unknown)
        return _seen(taken) if path.resolve() == _trained_on(found) else taken
    if split is None and str(data) != found.federation.name and not _is_data_set(str(data)):
        raise DataError(
            f"{data} does not exist; give a file, a folder of pictures, or a data set such as"
            f" digits.{nearest(str(data), _names())}"
        )
    return data_set(str(data), found, client, split or "test")


def _trained_on(found: Finished) -> Path | None:
    """The file or folder that the run's data set was read from; None where it names none."""
    config = found.engine.parts.config
    if "federation" in read_manifest(found.folder)["custom"]:
        return None
    call = parse_call(config.data)
    named = getattr(bind(call, find_dataset(call.name).factory, what="data"), "path", None)
    if not isinstance(named, str):
        return None
    try:
        return Place(None if config.data_root is None else Path(config.data_root)).file(call.name, named).resolve()
    except DataError:  # such as a name on a hub
        return None


def _seen(taken: PreparedInputs) -> PreparedInputs:
    """With a word on what a score is worth."""
    return replace(taken, notes=(*taken.notes, SEEN))


def _names() -> list[str]:
    return [row.name for row in datasets()]


def _is_data_set(text: str) -> bool:
    try:
        return parse_call(text).name in _names()
    except ConfigError:
        return False


def _file(path: Path, intake: InputPreprocessor, unknown: Unknown) -> PreparedInputs:
    kind = path.suffix.lower()
    if not path.stat().st_size:
        raise DataError(f"{path} is empty.")
    if kind in TABLES:
        return intake.table(read_columns(path), str(path), unknown=unknown)
    if kind in PICTURES:
        return intake.pictures([path], [path.name], None, str(path))
    if kind in ARRAYS:
        x, y = _arrays(path)
        return intake.array(x, y, str(path))
    if kind in TEXTS:
        return intake.texts(_lines(path), str(path))
    known = ", ".join([*TABLES, *ARRAYS, *TEXTS, *PICTURES[:3]])
    raise DataError(
        f"{path}: files are read by their ending, and {kind or 'none'!r} is none of {known}. This model takes"
        f" {intake.takes}."
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no UTF-8 text (byte {error.start}); save it as one.") from error


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """x, and y where there is one."""
    if path.suffix.lower() == ".npz":
        stored = read_npz(path)
        if "x" in stored:
            return stored["x"], stored.get("y")
        if len(stored) == 1:
            return next(iter(stored.values())), None
        raise DataError(
            f"{path} holds the arrays {', '.join(sorted(stored)[:12]) or 'none'}; x, and y for a score, are wanted."
        )
    try:
        with path.open("rb") as file:
            return np.load(file, allow_pickle=False), None
    except ValueError as error:
        raise DataError(
            f"{path} is no array that can be read ({str(error).rstrip('.')}); one of numbers, whole, is wanted. "
            "Arrays of Python objects need pickle, which can run code, and are refused."
        ) from error
    except (OSError, EOFError) as error:
        raise DataError(f"{path} is damaged or no .npy file ({error}).") from error


def _folder(path: Path, intake: InputPreprocessor, task: Task) -> PreparedInputs:
    """All pictures below a folder; one that lies in a folder named after a class is labelled."""
    root = path.resolve()
    files, passed = _pictures(root, root)
    if not files:
        raise DataError(f"{path} holds no picture ({', '.join(PICTURES[:4])}, ...).")
    known = {label: place for place, label in enumerate(task.labels)}
    classes = [known.get(file.parent.name) if file.parent != root else None for file in files]
    labels = [place for place in classes if place is not None]
    taken = intake.pictures(
        files, [str(file.relative_to(root)) for file in files], labels if len(labels) == len(files) else None, str(path)
    )
    notes = list(taken.notes)
    if passed:
        notes.append(f"{path}: {passed} files are no pictures and were passed over.")
    if 0 < len(labels) < len(files):
        notes.append(
            f"{path}: {len(files) - len(labels)} of {len(files)} pictures lie in no folder named after a class, so"
            " there is no score."
        )
    return PreparedInputs(taken.samples, taken.names, taken.labelled, tuple(notes))


def _pictures(folder: Path, root: Path) -> tuple[list[Path], int]:
    found: list[Path] = []
    other = 0
    for entry in children(folder, root):
        if entry.is_dir():
            more, passed = _pictures(entry, root)
            found, other = found + more, other + passed
        elif entry.suffix.lower() in PICTURES:
            found.append(entry)
        else:
            other += 1
    return found, other


def data_set(text: str, found: Finished, client: int | None, split: Split) -> PreparedInputs:
    """Samples of a data set in call syntax.

    Raises:
        DataError: another task, or samples that are prepared in another way than the run's.
    """
    config, federation = found.engine.parts.config, found.federation
    if text == federation.name:
        return _own(found, client, split)
    call = parse_call(text)
    reader = bind(call, find_dataset(call.name).factory, what="data")
    source = reader.read(
        Place(
            None if config.data_root is None else Path(config.data_root),
            None if config.clients == "auto" else config.clients,
        )
    )
    if source.name == federation.name:
        return _own(found, client, split)
    _same_task(source, found)
    samples = source.train if split == "train" else _there(source.test, f"{text} has no test set; use --split train.")
    return _all(samples)


def _own(found: Finished, client: int | None, split: Split) -> PreparedInputs:
    """The run's own data: a client's, where one is asked for and has some of its own."""
    federation = found.federation
    if client is not None and split == "train":
        return _seen(
            _chosen(
                federation.train, federation.training(client), f"client {found.name(client)} has no training sample."
            )
        )
    if client is not None and (held := federation.testing(client)) is not None:
        return _chosen(*held, f"client {found.name(client)} has no test sample of its own.")
    missing = (
        f"{federation.name}: the run pooled its test set; give --client, whose own test samples are then read, or"
        " --split train."
    )
    return _seen(_all(federation.train)) if split == "train" else _all(_there(federation.official, missing))


@dataclass(frozen=True, eq=False)
class SelectedSamples:
    """Some of many samples."""

    samples: Samples
    index: Tensor

    @property
    def y(self) -> Tensor:
        """[N] labels."""
        return self.samples.y[self.index]

    @property
    def lazy(self) -> bool:
        """As the samples."""
        return self.samples.lazy

    def __len__(self) -> int:
        return len(self.index)

    def take(self, index: Tensor) -> Tensor:
        """See :class:`fedstrata.data.io.samples.Samples`."""
        return self.samples.take(self.index[index])


def _chosen(samples: Samples, index: Tensor, otherwise: str) -> PreparedInputs:
    if not len(index):
        raise DataError(otherwise)
    return PreparedInputs(SelectedSamples(samples, index), tuple(map(str, index.tolist())), labelled=True)


def _all(samples: Samples) -> PreparedInputs:
    return PreparedInputs(samples, tuple(map(str, range(len(samples)))), labelled=True)


def _there(samples: Samples | None, otherwise: str) -> Samples:
    if samples is None:
        raise DataError(otherwise)
    return samples


def _same_task(source: Source, found: Finished) -> None:
    """Refuse samples that the model would misread."""
    ours, theirs = found.federation.task, source.task
    other = (
        f"{source.name} prepares its samples in another way than {found.federation.name}; give the file itself, and it"
        " is read as in training."
    )
    if source.scale is not None:  # by its own training rows
        raise DataError(other)
    for name, mine, its in (
        ("a sample has the shape", ours.shape, theirs.shape),
        ("the vocabulary is", ours.vocabulary, theirs.vocabulary),
        ("the classes are", ours.labels[:20], theirs.labels[:20]),
        ("the task is", ours.kind, theirs.kind),
    ):
        if mine != its:
            raise DataError(f"{source.name} is not what the model was trained for: {name} {its} there and {mine} here.")
    if source.intake != found.federation.intake:
        raise DataError(other)
