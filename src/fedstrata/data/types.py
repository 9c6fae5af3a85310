"""Types of data: the task of a model, groups of samples, and a data set before it is dealt to clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.data.metrics import Scores
from fedstrata.data.task_kinds import TaskKind, find_task

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """A learning task: what a sample is, how many outputs a model has, and how it is trained and scored.

    Attributes:
        kind: name of its :class:`~fedstrata.data.task_kinds.TaskKind`: ``classification`` (binary is two classes),
            ``regression``, or one of a plug-in.
        shape: one sample's shape: (3, 32, 32) for images, (64,) for a table, (80,) for a sequence of tokens.
        classes: number of outputs: logits of a classification, 1 for regression.
        labels: class names in the order of the logits; () where targets are no classes.
        vocabulary: above 0, a sample holds int64 tokens below this number.
    """

    kind: str
    shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...] = ()
    vocabulary: int = 0

    @property
    def definition(self) -> TaskKind:
        """The behaviour of this kind of task.

        Raises:
            ConfigError: no such kind is registered or installed.
        """
        return find_task(self.kind)

    @property
    def has_classes(self) -> bool:
        """Whether targets are class numbers, by which clients can differ."""
        return self.definition.targets == "classes"

    @property
    def has_accuracy(self) -> bool:
        """Whether the headline is an accuracy: a share of right answers, in [0, 1]."""
        return self.definition.headline == "accuracy"

    @property
    def num_classes(self) -> int:
        """Number of classes; 1 where targets are no classes."""
        return self.classes if self.has_classes else 1

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of one sample's outputs: (classes,), after the axes of the sample that the output keeps."""
        return (*self.shape[: self.definition.kept_axes], self.classes)

    @property
    def input_dtype(self) -> torch.dtype:
        """Type of a sample's values: int64 tokens or float32 numbers."""
        return torch.int64 if self.vocabulary else torch.float32

    @property
    def target_dtype(self) -> torch.dtype:
        """Type of ``y``: int64 classes or float32 numbers."""
        return torch.int64 if self.has_classes else torch.float32

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample; see :meth:`TaskKind.loss`."""
        return self.definition.loss(output, y)

    def metrics(self, output: Tensor, y: Tensor) -> Scores:
        """Return every metric by name; see :meth:`TaskKind.metrics`."""
        return self.definition.metrics(output, y)

    def score(self, output: Tensor, y: Tensor) -> float:
        """Return the headline, larger for a better model; see :meth:`TaskKind.score`."""
        return self.definition.score(output, y)


@dataclass(frozen=True)
class Groups:
    """The natural owners of samples: writers, roles, domains, the values of a client column.

    Attributes:
        names: one name for each group.
        train: [N] int64, the group of every training sample.
        test: [Nt] int64, the group of every test sample; None where the test set has other groups or none.
    """

    names: tuple[str, ...]
    train: Ints
    test: Ints | None = None
