"""Kinds of learning tasks: what targets are, the loss, the metrics. Packages add their own by entry points.

A kind is an object without state. A :class:`~fedstrata.data.types.Task` names its kind and reads the behaviour here:

    [project.entry-points."fedstrata.tasks"]
    preference = "mypackage.preference:Preference"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedstrata.common import plugins
from fedstrata.common.errors import DataError
from fedstrata.common.plugins import Plugin
from fedstrata.common.registry import Registry
from fedstrata.data.io.checks import class_labels, float32
from fedstrata.data.metrics import Scores, classification_metrics, regression_metrics

Targets: TypeAlias = Literal["classes", "numbers", "other"]


class TaskKind(ABC):
    """Define a kind of task; subclasses override what differs.

    Axes: N samples, B samples of a batch, C outputs of the model.

    Attributes:
        name: as data sets write it in ``Task.kind``.
        headline: the metric that models are ranked by; "accuracy" is a share of right answers, in [0, 1].
        larger_is_better: False for an error.
        targets: what ``y`` holds: "classes" (int64 class numbers, by which clients can differ), "numbers" (float32
            values to predict), or "other" (float32 values that only the loss reads).
        kept_axes: leading axes of a sample that the output keeps, such as the items of a pair or the positions of a
            sequence: a sample [A, *item] then has outputs [A, C] with one kept axis.
        output_meaning: what the outputs of the model are, for its signature.
    """

    name: ClassVar[str]
    headline: ClassVar[str]
    larger_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "other"
    kept_axes: ClassVar[int] = 0
    output_meaning: ClassVar[str] = "numbers"

    @abstractmethod
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample, [B]; pure tensor code that runs under vmap.

        Args:
            output: [B, *kept, C] outputs of the model.
            y: [B] targets.
        """

    @abstractmethod
    def metrics(self, output: Tensor, y: Tensor) -> Scores:
        """Return every metric by name, always the same names; None where undefined.

        Args:
            output: [N, *kept, C] outputs of the model.
            y: [N] targets.
        """

    def score(self, output: Tensor, y: Tensor) -> float:
        """Return the headline as a number that is larger for a better model; NaN where it is undefined.

        An error is negated. Shapes as in :meth:`metrics`.
        """
        value = self.metrics(output, y)[self.headline]
        return float("nan") if value is None else value if self.larger_is_better else -value

    def predictions(self, output: Tensor) -> Tensor:
        """Turn outputs [N, *kept, C] into predictions: [N] numbers, or [N, C] probabilities of classes."""
        return output[:, 0]

    def outputs(self, shape: tuple[int, ...], targets: Sequence[NDArray[Any]], labels: tuple[str, ...]) -> int:
        """Count the outputs that a model needs, for data that are given as arrays.

        Args:
            shape: of one sample.
            targets: those of training and test samples, as given.
            labels: class names, as given.
        """
        return 1

    def parse_targets(self, values: NDArray[Any], outputs: int, where: str) -> Tensor:
        """Turn targets as given into the tensor ``y``, [N].

        Args:
            values: [N].
            outputs: of the model.
            where: for messages.
        Raises:
            DataError: another shape or type.
        """
        return torch.from_numpy(float32(values))

    def check_targets(self, y: Tensor, outputs: int, where: str) -> None:
        """Refuse targets that the loss cannot read.

        Raises:
            DataError: the message names what is wrong.
        """
        if y.dtype != torch.float32 or y.ndim != 1 or not bool(torch.isfinite(y).all()):
            raise DataError(
                f"{where}: {self.name} targets are finite float32 of shape [N]; these are {y.dtype} of shape"
                f" {tuple(y.shape)} or not finite."
            )


class Classification(TaskKind):
    """One class of several: of an image, a row, a text; or the next token of a sequence.

    Source: cross-entropy of the softmax.
    """

    name = "classification"
    headline = "accuracy"
    targets = "classes"
    output_meaning = "logits, in the order of labels; softmax gives probabilities"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of each sample."""
        return cross_entropy(output, y, reduction="none")

    def metrics(self, output: Tensor, y: Tensor) -> Scores:
        """Return accuracy, balanced accuracy, F1, AUC, log loss and calibration error."""
        return classification_metrics(output, y)

    def score(self, output: Tensor, y: Tensor) -> float:
        """Return the accuracy; a row of outputs that is not finite is wrong."""
        return float(((output.argmax(-1) == y) & output.isfinite().all(-1)).double().mean())

    def predictions(self, output: Tensor) -> Tensor:
        """Return probabilities, [N, C]."""
        return output.double().softmax(1)

    def outputs(self, shape: tuple[int, ...], targets: Sequence[NDArray[Any]], labels: tuple[str, ...]) -> int:
        """Count the classes: those with a name, or up to the largest number; at least two."""
        return len(labels) if labels else max(2, *(int(part.max(initial=0)) + 1 for part in targets))

    def parse_targets(self, values: NDArray[Any], outputs: int, where: str) -> Tensor:
        """Return class numbers as int64."""
        return class_labels(values.astype(np.int64) if values.dtype.kind == "b" else values, outputs, where)

    def check_targets(self, y: Tensor, outputs: int, where: str) -> None:
        """Refuse what is no class number below ``outputs``."""
        class_labels(y.numpy(), outputs, where)


class Regression(TaskKind):
    """One number. Source: squared error."""

    name = "regression"
    headline = "rmse"
    larger_is_better = False
    targets = "numbers"
    output_meaning = "one number a sample"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the squared error of each sample."""
        return (output.squeeze(-1) - y).square()

    def metrics(self, output: Tensor, y: Tensor) -> Scores:
        """Return the root of the mean squared error, and R2."""
        return regression_metrics(output, y)

    def score(self, output: Tensor, y: Tensor) -> float:
        """Return minus the root of the mean squared error; not finite where an output is not."""
        return -float((output.squeeze(-1) - y).double().square().mean().sqrt())


def _adapted(plugin: Plugin, offered: object) -> object:
    """Make a kind of a plug-in's class, and refuse one of another name."""
    kind = offered() if isinstance(offered, type) and issubclass(offered, TaskKind) else offered
    if isinstance(kind, TaskKind) and kind.name != plugin.name:
        plugins.refuse(plugin, f"its kind is called {kind.name!r}, so the entry point must have that name, too.")
    return kind


TASKS: Registry[TaskKind] = Registry(
    "tasks",
    "task",
    accepts=lambda offered: isinstance(offered, TaskKind),
    wanted="a subclass of fedstrata.data.TaskKind",
    entries={kind.name: kind for kind in (Classification(), Regression())},
    adapt=_adapted,
)


def task_kinds() -> Mapping[str, TaskKind]:
    """Return the built-in and registered kinds of tasks, by name."""
    return TASKS.items()


def find_task(name: str) -> TaskKind:
    """Return the kind of that name, ours or of an installed package, which is imported then.

    Raises:
        ConfigError: unknown; the message has the nearest names. A plug-in that cannot be used.
    """
    return TASKS.items()[name] if name in TASKS.items() else TASKS.find(name)  # many calls: no metadata for our own
