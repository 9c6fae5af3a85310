"""Use the ``hub`` extra: data sets in the format of Hugging Face's ``datasets``, and flwr-datasets' partitioners.

Its libraries are imported on first use.
"""

from __future__ import annotations

import importlib
import inspect
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedstrata.common.call_syntax import Call
from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.random_streams import key
from fedstrata.common.suggest import suggestion
from fedstrata.data.inputs.text import Words
from fedstrata.data.io.checks import class_labels
from fedstrata.data.io.columns import Column, arrow_columns
from fedstrata.data.io.encoding import Encoding
from fedstrata.data.io.normalization import Norm
from fedstrata.data.io.samples import Tensors
from fedstrata.data.location import VARIABLE, Place
from fedstrata.data.partition.base import ExplicitPartition, LabelView, Partition
from fedstrata.data.partition.laws import CLIENTS
from fedstrata.data.source import Source
from fedstrata.data.sources.images import groups_by, image_set, image_source
from fedstrata.data.sources.tables import encode, stacked
from fedstrata.data.sources.text import build_vocabulary, tokenize
from fedstrata.data.sources.text import encode as encode_text
from fedstrata.data.types import Groups, Task


def extra(module: str, what: str) -> Any:
    """Import a module of the ``hub`` extra.

    Raises:
        DataError: it is not installed; the message has the command to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{what} needs {module.split('.', maxsplit=1)[0].replace('_', '-')}, which is not installed: pip install"
            " 'fedstrata[hub]'."
        ) from error


@dataclass(frozen=True)
class Hub:
    """A data set of the hub, or a folder that ``datasets`` saved (``save_to_disk``).

    Args:
        path: a folder (absolute or below data.root), or a name on the hub such as ylecun/mnist, which needs a network
            or a filled cache.
        label: the column to predict.
        image: column of pictures; or
        text: column of text; with neither, the other columns are a table's.
        client: the column that names the holder of a row.
        config: the hub's configuration name, where a data set has several.
        train: name of the training split.
        test: name of the test split.
        size: side of pictures in pixels.
        channels: 3, or 1 for grey.
        norm: a row of ``NORMS`` for pictures.
        length: longest text in words.
    """

    path: str
    label: str = "label"
    image: str | None = None
    text: str | None = None
    client: str | None = None
    config: str | None = None
    train: str = "train"
    test: str = "test"
    size: int = 32
    channels: Literal[1, 3] = 3
    norm: Norm = "half"
    length: int = 512

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        library = extra("datasets", f"data hub(path={self.path!r})")
        stored = self._load(library, place)
        for split in (self.train, self.test):
            if split not in stored:
                raise DataError(
                    f"hub {self.path} has the splits {', '.join(stored)}, not {split!r}; set train= and test=."
                )
        sets = [stored[self.train], stored[self.test]]
        for name in filter(None, (self.label, self.image, self.text, self.client)):
            if name not in sets[0].column_names:
                raise DataError(
                    f"hub {self.path} has no column {name!r}.{suggestion(name, sets[0].column_names)} It has"
                    f" {sets[0].column_names}."
                )
        identity = (
            f"hub({Path(self.path).name}, {self.config}, {self.train}, {self.test}, label={self.label},"
            f" client={self.client}"
        )
        if self.image:
            return self._images(
                sets, f"{identity}, image={self.image}, size={self.size}, channels={self.channels}, norm={self.norm})"
            )
        if self.text:
            return self._texts(sets, f"{identity}, text={self.text}, length={self.length})")
        tables = [arrow_columns(part.with_format(None).data.table, self.path) for part in sets]
        is_test = np.repeat([False, True], [len(part) for part in sets])
        columns: dict[str, Column] = {name: stacked(name, first, tables[1][name]) for name, first in tables[0].items()}
        return encode(columns, Encoding(self.label, self.client), is_test, 0.2, f"{identity})", self.path)

    def _load(self, library: Any, place: Place) -> Any:
        roots = [
            Path(),
            *([place.root] if place.root else []),
            *([Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []),
        ]
        folder = next((root / self.path for root in roots if (root / self.path / "dataset_dict.json").exists()), None)
        try:
            return library.load_from_disk(str(folder)) if folder else library.load_dataset(self.path, self.config)
        except Exception as error:  # the library raises errors of many other libraries
            raise DataError(
                f"hub {self.path}: cannot be loaded ({type(error).__name__}:"
                f" {str(error).splitlines()[0] if str(error) else 'no reason given'}); a name on the hub needs a"
                " network or a filled cache, a folder needs datasets' save_to_disk()."
            ) from error

    def _labels(self, part: Any) -> tuple[NDArray[Any], tuple[str, ...]]:
        values = np.asarray(part.with_format(None)[self.label][:])
        known = getattr(part.features[self.label], "names", None)
        return values, (
            tuple(known) if known else tuple(str(c) for c in range(int(values.max()) + 1) if values.dtype.kind in "iu")
        )

    def _groups(self, sets: list[Any]) -> dict[str, Groups]:
        if self.client is None:
            return {}
        train, test = (np.asarray([str(v) for v in part.with_format(None)[self.client][:]]) for part in sets)
        return {"client": groups_by(train, test)}

    def _images(self, sets: list[Any], identity: str) -> Source:
        names = self._labels(sets[0])[1]
        parts = []
        for part in sets:
            pixels = np.empty((len(part), self.channels, self.size, self.size), dtype=np.uint8)
            for row, picture in enumerate(part[self.image]):
                fitted = picture.convert("RGB" if self.channels == 3 else "L").resize((self.size, self.size))
                pixels[row] = np.asarray(fitted).reshape(self.size, self.size, self.channels).transpose(2, 0, 1)
            parts.append(
                image_set(pixels, self._labels(part)[0], names, self.norm, f"hub {self.path}, column {self.label}")
            )
        source = image_source(identity, parts[0], parts[1], names, self._groups(sets), fit="stretch")
        return replace(source, natural=self.client is not None)

    def _texts(self, sets: list[Any], identity: str) -> Source:
        names = self._labels(sets[0])[1]
        words = [[tokenize(text) or ["<unk>"] for text in part[self.text]] for part in sets]
        vocabulary = build_vocabulary(words[0], 5)
        length = min(self.length, max(len(text) for text in words[0]))
        parts = [
            Tensors(
                encode_text(texts, vocabulary, length),
                class_labels(self._labels(part)[0], len(names), f"hub {self.path}"),
            )
            for texts, part in zip(words, sets, strict=True)
        ]
        task = Task("classification", (length,), len(names), names, len(vocabulary))
        assert self.text is not None, "called only where a column of text was named"
        preprocessor = Words((self.text,), self.label, names, vocabulary, length, tokenize, encode_text, empty=True)
        return Source(
            identity,
            task,
            parts[0],
            parts[1],
            self._groups(sets),
            natural=self.client is not None,
            preprocessor=preprocessor,
        )


@dataclass(frozen=True)
class FlowerLaw:
    """Any partitioner of flwr-datasets, such as ``InnerDirichletPartitioner(partition_sizes=[100, 200], alpha=0.3)``.

    ``num_partitions`` is the number of clients, ``partition_by`` the label, and ``seed`` the run's, unless the call
    sets them; ``partition_by`` may also be one of the data's groups ("writer", "domain").

    Args:
        call: what the user wrote.
    """

    call: Call

    def deal(self, pool: LabelView, clients: int | None, seed: int) -> Partition:
        """See :class:`Law`."""
        known = extra("flwr_datasets.partitioner", f"partition {self.call.name}")
        library = extra("datasets", f"partition {self.call.name}")
        names = [
            name
            for name in dir(known)
            if name.endswith("Partitioner") and name != "Partitioner" and not name.startswith("Vertical")
        ]
        if self.call.name not in names:
            raise ConfigError(
                f"flwr-datasets has no {self.call.name}, or it does not deal samples."
                f"{suggestion(self.call.name, names)}"
            )
        arguments = self._arguments(getattr(known, self.call.name), clients, seed)
        columns: dict[str, Any] = {"row": np.arange(pool.size)}
        if pool.labels is not None:
            columns["label"] = pool.labels
        for name, group in pool.groups.items():
            columns[name] = np.array(group.names)[group.train]
        try:
            partitioner = getattr(known, self.call.name)(**arguments)
            partitioner.dataset = library.Dataset.from_dict(columns)
            parts = [
                np.asarray(partitioner.load_partition(i)["row"][:], dtype=np.int64)
                for i in range(partitioner.num_partitions)
            ]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise DataError(f"partition {self.call}: flwr-datasets refuses it: {error}") from error
        if clients is not None and len(parts) != clients:
            raise DataError(
                f"partition {self.call} makes {len(parts)} clients, and clients is {clients}; leave clients out or make"
                " them agree."
            )
        used = np.concatenate(parts)
        if len(np.unique(used)) != len(used):
            raise DataError(
                f"partition {self.call} gives {len(used) - len(np.unique(used))} samples to several clients, which only"
                " overlap(...) may do."
            )
        notes = (
            (f"{self.call.name}: {pool.size - len(used)} of {pool.size} samples are left over and unused.",)
            if len(used) < pool.size
            else ()
        )
        natural = tuple(
            str(name) for name in getattr(partitioner, "partition_id_to_natural_id", {}).values()
        )  # where a column defines the clients
        return ExplicitPartition.of(
            str(self.call), parts, notes=notes, names=natural if len(natural) == len(parts) else ()
        )

    def _arguments(self, factory: Any, clients: int | None, seed: int) -> dict[str, Any]:
        accepted = [name for name in inspect.signature(factory).parameters if name != "self"]
        if self.call.positional:
            raise ConfigError(
                f"partition {self.call}: name every setting; {self.call.name} accepts {', '.join(accepted)}."
            )
        for name in self.call.named:
            if name not in accepted:
                raise ConfigError(
                    f"partition {self.call.name} has no setting {name!r}.{suggestion(name, accepted)} It accepts"
                    f" {', '.join(accepted)}."
                )
        given = {name: list(value) if isinstance(value, tuple) else value for name, value in self.call.named.items()}
        defaults = {
            "num_partitions": CLIENTS if clients is None else clients,
            "partition_by": "label",
            "seed": key(seed, "partition", "flwr") % 2**31,
        }
        return {name: value for name, value in defaults.items() if name in accepted} | given
