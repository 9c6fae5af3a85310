"""The interface of studies: computations on finished runs that return numbers, panels and figures."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from fedstrata.common.errors import ConfigError
from fedstrata.core.params import Model
from fedstrata.diagnostics.panel import Panel
from fedstrata.engine.rounds import Engine
from fedstrata.inference.finished_run import Finished
from fedstrata.report.page.drawing import Picture

MAX_LISTED = 6  # positions that a note lists


@dataclass(frozen=True)
class Outcome:
    """The results of a study.

    Attributes:
        numbers: all results as JSON: settings that the study chose, per-series values, counts; no NaN.
        panels: curves, maps, bars and tables.
        pictures: further figures, such as grids of images or level lines.
        notes: what a reader must know.
    """

    numbers: Mapping[str, Any]
    panels: Sequence[Panel] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Study(ABC):
    """Computes an outcome from finished runs.

    Subclasses are frozen dataclasses of settings; they override :meth:`study`.

    Class attributes:
        title: a few words for a heading.
        text: what is measured, in which unit, what high and low mean, and the source.
        least, most: how many runs it takes together; most None is any number.
    """

    title: ClassVar[str] = ""
    text: ClassVar[str] = ""
    least: ClassVar[int] = 1
    most: ClassVar[int | None] = None

    @abstractmethod
    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """Study runs, by label. Equal runs and settings give equal outcomes.

        Raises:
            ConfigError: unsuitable runs: another task, or models that do not match.
        """

    def check(self, runs: Sequence[str]) -> None:
        """Refuse an invalid number of runs.

        Raises:
            ConfigError: too few or too many runs.
        """
        if len(runs) < self.least or (self.most is not None and len(runs) > self.most):
            valid = (
                str(self.least)
                if self.most == self.least
                else f"{self.least} or more"
                if self.most is None
                else f"{self.least} to {self.most}"
            )
            raise ConfigError(
                f"a study of {self.title.lower()} takes {valid} run{'' if valid == '1' else 's'}, and {len(runs)}"
                " were given."
            )


def once_each(setting: str, values: Sequence[object]) -> None:
    """Refuse a list that names a value twice.

    Raises:
        ConfigError: a value occurs twice.
    """
    repeated = [value for i, value in enumerate(values) if value in values[:i]]
    if repeated:
        raise ConfigError(f"{setting} is {list(values)}, which has {repeated[0]} twice; name each once.")


def finite(outcome: Outcome) -> Outcome:
    """Return the outcome with None for numbers that are not finite, and a note that says where they were."""
    lost: list[str] = []
    numbers = _finite(outcome.numbers, "", lost)
    panels = [
        replace(p, series=_finite(p.series, p.title, lost), spread=_finite(p.spread, p.title, lost))
        for p in outcome.panels
    ]
    if not lost:
        return outcome
    names = list(dict.fromkeys(lost))
    listed = ", ".join(names[:MAX_LISTED]) + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")
    note = (
        f"numbers that are not finite are left empty: {listed}; a setting of the study is too large, or the model has"
        " diverged."
    )
    return replace(outcome, numbers=numbers, panels=panels, notes=[*outcome.notes, note])


def _finite(value: Any, name: str, lost: list[str]) -> Any:
    """Return a JSON value with None for numbers that are not finite; their names are added to ``lost``."""
    if isinstance(value, Mapping):
        return {key: _finite(one, f"{name}, {key}" if name else str(key), lost) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one, name, lost) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(name)
        return None
    return value


def replay(run: Finished) -> Iterator[tuple[int, Model]]:
    """Train a finished run again in memory, in one thread.

    Yields:
        (rounds done, the server's model after them), from (0, the initial model). A model is valid until the next one
        is requested.
    """
    engine = Engine(run.engine.parts, "loop", 1)
    yield 0, engine.server.model
    for row in engine.rounds():
        yield int(row["round"]) + 1, engine.server.model
