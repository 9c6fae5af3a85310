"""Read the sizes that a model needs from a task: the shape of one sample, the outputs, the vocabulary."""

from __future__ import annotations

import math

from fedstrata.common.errors import DataError
from fedstrata.data.types import Task


def outputs(task: Task, model: str) -> int:
    """The number of outputs, at least 1.

    Raises:
        DataError: the task has no classes.
    """
    if task.classes < 1:
        raise DataError(
            f"model {model} cannot have {task.classes} outputs: the task says classes={task.classes}. It needs 1 for"
            " a regression and at least 2 for a classification."
        )
    return task.classes


def numbers(task: Task, model: str) -> int:
    """Numbers in one sample, whatever its axes, for models that flatten.

    Raises:
        DataError: tokens, or an axis of length 0.
    """
    _not_tokens(task, model, "numbers")
    count = math.prod(task.shape)
    if count < 1:
        raise DataError(f"model {model}: one sample has shape {task.shape} and holds no number.")
    return count


def image(task: Task, model: str) -> tuple[int, int, int]:
    """(channels, height, width) of an image task.

    Raises:
        DataError: tokens, or samples without exactly these three axes.
    """
    _not_tokens(task, model, "images")
    if len(task.shape) == 3 and min(task.shape) >= 1:
        channels, height, width = task.shape
        return channels, height, width
    remedy = (
        f"Add the channel axis: {(1, *task.shape)}." if len(task.shape) == 2 else "Use mlp or logistic, which flatten."
    )
    raise DataError(
        f"model {model} reads images [channels, height, width], but one sample has shape {task.shape}. {remedy}"
    )


def _not_tokens(task: Task, model: str, wanted: str) -> None:
    if task.vocabulary > 0:
        raise DataError(
            f"model {model} reads {wanted}, but the samples are tokens (vocabulary {task.vocabulary}). Use char_lstm or"
            " transformer."
        )


def at_least(size: tuple[int, int], smallest: int, model: str, remedy: str) -> None:
    """Refuse images that the model's pools would shrink to nothing.

    Raises:
        DataError: height or width below ``smallest``; the message gives both and the remedy.
    """
    if min(size) < smallest:
        wanted, given = f"{smallest} x {smallest}", f"{size[0]} x {size[1]}"
        raise DataError(
            f"model {model} needs images of at least {wanted} pixels, these have {given}: its convolutions and pools"
            f" would leave nothing. {remedy}"
        )


def tokens(task: Task, model: str) -> tuple[int, int]:
    """(vocabulary, length) of a text task.

    Raises:
        DataError: numbers instead of tokens, or samples that are not one row.
    """
    if task.vocabulary < 1:
        raise DataError(
            f"model {model} reads tokens, but samples are numbers of shape {task.shape}. Use cnn or resnet8 for images,"
            " mlp for tables."
        )
    if len(task.shape) != 1 or task.shape[0] < 1:
        raise DataError(
            f"model {model} reads one row of tokens a sample, (length,), but one sample has shape {task.shape}."
        )
    return task.vocabulary, task.shape[0]
