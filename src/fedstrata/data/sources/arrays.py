"""Build a source from tensors or arrays in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedstrata.common.errors import DataError
from fedstrata.data.inputs import InputPreprocessor, Numbers, Pictures
from fedstrata.data.inputs.base import tokens
from fedstrata.data.io.checks import float32
from fedstrata.data.io.samples import Images, Samples, Tensors
from fedstrata.data.source import Source
from fedstrata.data.task_kinds import TaskKind, find_task
from fedstrata.data.types import Groups, Task

Given = Tensor | ArrayLike


def source_of(
    x: Given,
    y: Given,
    *,
    name: str,
    client: ArrayLike | None = None,
    test: Sequence[Any] | None = None,
    labels: tuple[str, ...] = (),
    vocabulary: int = 0,
    task: str | None = None,
) -> Source:
    """Build a source of arrays; arguments as in :meth:`Federation.of`, and a name with the settings of the content.

    Raises:
        DataError: shapes, labels or features that are invalid.
    """
    if test is not None and not isinstance(test, tuple | list):
        raise DataError(
            f"test is {str(test)[:40]!r}; it is (x, y) or (x, y, client), and a share of each client's own samples is"
            " testing='own(share=0.2)'."
        )
    if test is not None and len(test) not in (2, 3):
        raise DataError(f"test has {len(test)} parts; it is (x, y) or (x, y, client).")
    targets, test_targets = _plain(y), None if test is None else _plain(test[1])
    kind = find_task(task or ("classification" if targets.dtype.kind in "iub" else "regression"))
    if targets.dtype.kind not in "iubf":
        raise DataError(f"y holds {targets.dtype}; it must hold class numbers (integers) or targets (floats).")
    outputs = kind.outputs(np.shape(x)[1:], [part for part in (targets, test_targets) if part is not None], labels)
    train = _samples(x, targets, outputs, vocabulary, kind, "x, y")
    tested = (
        None
        if test is None or test_targets is None
        else _samples(test[0], test_targets, outputs, vocabulary, kind, "test x, y")
    )
    names = labels or (tuple(str(c) for c in range(outputs)) if kind.targets == "classes" else ())
    made = Task(kind.name, _shape(train), outputs, names, vocabulary)
    groups = (
        {} if client is None else {"client": _groups(client, test, len(train), 0 if tested is None else len(tested))}
    )
    dark = (0.0,) * made.shape[0] if isinstance(train, Images) or (len(made.shape) == 3 and not vocabulary) else ()
    content = [_content(x)] + ([] if test is None else [_content(test[0])])
    identity = f"{name} {' '.join(content)}"
    return Source(
        name,
        made,
        train,
        tested,
        groups,
        natural=client is not None,
        dark=dark,
        preprocessor=preprocessor_of(train, made),
        identity=identity,
    )


def _content(values: Given) -> str:
    """Return SHA-256 (hex) over features, for the fingerprint; it covers labels separately."""
    plain = np.ascontiguousarray(_plain(values))
    return hashlib.sha256(repr((plain.dtype.str, plain.shape)).encode() + plain.tobytes()).hexdigest()


def preprocessor_of(train: Samples, task: Task) -> InputPreprocessor:
    """Build the preprocessor of further samples, which are given like these."""
    classes = task.classes if task.has_classes else 0
    if isinstance(train, Images):
        return Pictures(task.shape[1], task.shape[2], train.mean, train.std, classes)
    return Numbers(task.shape, classes, task.vocabulary)


def _plain(values: Given) -> NDArray[Any]:
    plain = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return plain if plain.flags.writeable else plain.copy()  # torch takes no read-only memory


def _samples(x: Given, y: NDArray[Any], outputs: int, vocabulary: int, kind: TaskKind, where: str) -> Samples:
    features = _plain(x)
    if features.dtype == object:
        raise DataError(f"{where}: x is an array of Python objects; give numbers of one shape.")
    targets = kind.parse_targets(y, outputs, where)
    if features.ndim < 2 or len(features) != len(y):
        raise DataError(f"{where}: x has shape {features.shape} and y {y.shape}; x is [N, ...] and y is [N].")
    if vocabulary:
        return Tensors(tokens(features, vocabulary, where), targets)
    if features.dtype == np.uint8 and features.ndim == 4:
        channels = features.shape[1]
        return Images(torch.from_numpy(np.ascontiguousarray(features)), targets, (0.0,) * channels, (1.0,) * channels)
    if features.dtype.kind != "f":
        raise DataError(
            f"{where}: x holds {features.dtype}; give floats, uint8 images [N, C, H, W], or tokens with vocabulary=."
        )
    return Tensors(torch.from_numpy(float32(features)), targets)


def _shape(samples: Samples) -> tuple[int, ...]:
    assert isinstance(samples, Images | Tensors)
    return tuple(samples.x.shape[1:])


def _groups(client: ArrayLike, test: Sequence[Any] | None, train: int, tested: int) -> Groups:
    owner = np.asarray(client)
    test_targets = np.asarray(test[2]) if test is not None and len(test) == 3 else None
    if owner.shape != (train,) or (test_targets is not None and test_targets.shape != (tested,)):
        raise DataError(
            f"client has shape {owner.shape} for {train} training samples; it names the holder of each sample, shape"
            " [N] (test alike)."
        )
    known, codes = np.unique(
        owner if test_targets is None else np.concatenate([owner, test_targets]), return_inverse=True
    )
    return Groups(
        tuple(str(k) for k in known),
        codes[:train].astype(np.int64),
        None if test_targets is None else codes[train:].astype(np.int64),
    )
