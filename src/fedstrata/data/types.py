"""What a federation asks of a model, and what a data set hands to the partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedstrata.data.inputs import InputPreprocessor
    from fedstrata.data.io.samples import Samples

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """The learning task, as the model sees it.

    Attributes:
        kind: ``classification`` (binary is two classes) or ``regression``.
        shape: one sample's shape: (3, 32, 32) for images, (64,) for a table, (80,) for a sequence of tokens.
        classes: number of logits; 1 for regression.
        labels: class names in the order of the logits; () for regression.
        vocabulary: above 0, a sample holds int64 tokens below this number.
    """

    kind: Literal["classification", "regression"]
    shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...] = ()
    vocabulary: int = 0


@dataclass(frozen=True)
class Groups:
    """Whom the samples belong to by nature: a writer, a role, a domain, a client column.

    Attributes:
        names: one name a group.
        train: [N] int64, the group of every training sample.
        test: [Nt] int64, the group of every test sample; None where the test set has other groups or none.
    """

    names: tuple[str, ...]
    train: Ints
    test: Ints | None = None


@dataclass(frozen=True)
class Source:
    """A data set before it is dealt to clients.

    Attributes:
        name: as a user writes it, with the settings that change its content; never a place, so that a fingerprint holds
            on every machine.
        task: see :class:`Task`.
        train: training samples.
        test: the test set, official where there is one; None where there is none.
        groups: natural groups by name ("writer", "domain", "client"); the first is the default of ``natural``.
        natural: True where the data come with clients of their own, so that ``natural`` is the default partition.
        dark: [channels] the value of a black pixel after normalisation; () where samples are not images.
        notes: what a user must be told.
        scale: given every client's training indices, the normalised source; None where nothing needs training
            statistics.
        intake: how further samples are prepared, for predictions; None where the data set does not say.
        identity: what a fingerprint is taken over, where that is more than the name: all settings, and the content of
            files.
    """

    name: str
    task: Task
    train: Samples
    test: Samples | None
    groups: Mapping[str, Groups] = field(default_factory=dict)
    natural: bool = False
    dark: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    scale: Callable[[list[Ints]], Source] | None = None
    intake: InputPreprocessor | None = None
    identity: str = ""
