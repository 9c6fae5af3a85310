"""What a study is: a look at finished runs that costs computation of its own, numbers, panels and pictures out of
it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from fedstrata.common.errors import ConfigError
from fedstrata.core.params import Params
from fedstrata.diagnostics.panel import Panel
from fedstrata.engine.rounds import Engine
from fedstrata.inference.finished_run import Finished
from fedstrata.report.page.drawing import Picture

MANY = 6  # places that a note lists


@dataclass(frozen=True)
class Outcome:
    """What a study found.

    Attributes:
        numbers: everything that it says, as JSON: settings that it chose, per-series values, counts; no NaN.
        panels: what is read as a curve, a map, bars or a table.
        pictures: further pictures, as sheets of images or level lines.
        notes: what a reader must be told.
    """

    numbers: Mapping[str, Any]
    panels: Sequence[Panel] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Study(ABC):
    """A study of finished runs. Subclasses are frozen dataclasses of settings; they override :meth:`study`.

    Class attributes:
        title: a few words for a heading.
        text: what is measured, in which unit, what high and low mean, and the source.
        least, most: how many runs it looks at together; most None is any number.
    """

    title: ClassVar[str] = ""
    text: ClassVar[str] = ""
    least: ClassVar[int] = 1
    most: ClassVar[int | None] = None

    @abstractmethod
    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """Look at runs, by label. The same runs and settings give the same outcome.

        Raises:
            ConfigError: the runs do not fit the study: another task, or models that do not match.
        """

    def check(self, runs: Sequence[str]) -> None:
        """Refuse a number of runs that the study cannot look at.

        Raises:
            ConfigError: too few or too many.
        """
        if len(runs) < self.least or (self.most is not None and len(runs) > self.most):
            wanted = (
                str(self.least)
                if self.most == self.least
                else f"{self.least} or more"
                if self.most is None
                else f"{self.least} to {self.most}"
            )
            raise ConfigError(
                f"a study of {self.title.lower()} looks at {wanted} run{'' if wanted == '1' else 's'}, and {len(runs)}"
                " were given."
            )


def once_each(setting: str, values: Sequence[object]) -> None:
    """Refuse a list that names something twice.

    Raises:
        ConfigError: it does.
    """
    twice = [value for place, value in enumerate(values) if value in values[:place]]
    if twice:
        raise ConfigError(f"{setting} is {list(values)}, which has {twice[0]} twice; name each once.")


def finite(outcome: Outcome) -> Outcome:
    """The same outcome with None for numbers that are not finite, and a note on where they were."""
    lost: list[str] = []
    numbers = _known(outcome.numbers, "", lost)
    panels = [
        replace(p, series=_known(p.series, p.title, lost), spread=_known(p.spread, p.title, lost))
        for p in outcome.panels
    ]
    if not lost:
        return outcome
    places = list(dict.fromkeys(lost))
    some = ", ".join(places[:MANY]) + (f" and {len(places) - MANY} more" if len(places) > MANY else "")
    note = (
        f"numbers that are not finite are left empty: {some}; a setting of the study is too large for them, or the"
        " model has diverged."
    )
    return replace(outcome, numbers=numbers, panels=panels, notes=[*outcome.notes, note])


def _known(value: Any, where: str, lost: list[str]) -> Any:
    """A value of JSON with None for what is not finite; the places of those join ``lost``."""
    if isinstance(value, Mapping):
        return {key: _known(one, f"{where}, {key}" if where else str(key), lost) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_known(one, where, lost) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(where)
        return None
    return value


def replay(run: Finished) -> Iterator[tuple[int, Params]]:
    """Train a finished run again in memory, in one thread.

    Yields:
        (rounds done, the server's model after them), from (0, the first model). A model is to be read before the next
        one is asked for.
    """
    engine = Engine(run.engine.parts, "loop", 1)
    yield 0, engine.server.model
    for row in engine.rounds():
        yield int(row["round"]) + 1, engine.server.model
