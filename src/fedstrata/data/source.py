"""A data set before it is dealt to clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedstrata.data.inputs import InputPreprocessor
from fedstrata.data.io.samples import Samples
from fedstrata.data.types import Groups, Ints, Task


@dataclass(frozen=True)
class Source:
    """A data set before it is dealt to clients.

    Attributes:
        name: as a user writes it, with the settings that change its content; never a folder: the fingerprint is the
            same on every machine.
        task: see :class:`Task`.
        train: training samples.
        test: the test set, official where there is one; None where there is none.
        groups: natural groups by name ("writer", "domain", "client"); the first is the default of ``natural``.
        natural: True where the data define clients; ``natural`` is then the default partition.
        dark: [channels] the value of a black pixel after normalisation; () where samples are not images.
        notes: for the user.
        scale: returns the normalised source, given every client's training indices; None where normalisation needs no
            training statistics.
        intake: prepares further samples, for predictions; None where the data set defines no way.
        identity: the text to fingerprint, where that is more than the name: all settings, and the content of files.
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
    preprocessor: InputPreprocessor | None = None
    identity: str = ""
