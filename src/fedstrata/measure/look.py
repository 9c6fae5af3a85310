"""The one interface of measures: a look at a round that was trained, numbers out of it, and panels for a report."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from torch import Tensor

from fedstrata.layout import Layout
from fedstrata.measure.panel import Panel
from fedstrata.params import Params
from fedstrata.states import State

if TYPE_CHECKING:
    from fedstrata.piece import Reply

ALL = "all"
"""The series of the whole model, beside those of single layer groups."""

Runs: TypeAlias = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
"""Label of a method -> its runs, one a seed -> rows of rounds.jsonl."""


@dataclass(frozen=True)
class Look:
    """A round as a measure sees it. It is for reading: a measure never changes what it is given.

    Attributes:
        round: zero-based.
        layout: names and groups of the model.
        before, after: the server's model before and after the round, with statistics.
        replies: accepted replies in cohort order, as the server got them; an upload that was made lossy is lossy here.
        slots: server slots after the round, by piece.
        features: ``features(params, most)`` gives ([N, d] features in front of the head, [N] targets) of up to ``most`` test samples.
    """

    round: int
    layout: Layout
    before: Params
    after: Params
    replies: Sequence[Reply]
    slots: Mapping[str, State]
    features: Callable[[Params, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Measure(ABC):
    """A look at training. Subclasses are frozen dataclasses of settings; they override :meth:`look`, and :meth:`panels` where a curve is not enough.

    Class attributes:
        title: a few words for a heading.
        text: what is measured, in which unit, what high and low mean, and the source.
        unit: for the axis.
    """

    title: ClassVar[str] = ""
    text: ClassVar[str] = ""
    unit: ClassVar[str] = ""

    @abstractmethod
    def look(self, look: Look) -> Mapping[str, float | None]:
        """Numbers of this round, by series: "all" for the whole model, names of layer groups, or what the measure calls them.

        Called after evaluated rounds. None, or a number that is not finite, stands for undefined.
        """

    def panels(self, name: str, runs: Runs) -> list[Panel]:
        """What a report shows. Default: the whole model's curve a method, with its spread over seeds, and a map of layer groups a method."""
        curve = self._curve(name, runs)
        return ([curve] if curve is not None else []) + self._maps(name, runs)

    def _curve(self, name: str, runs: Runs) -> Panel | None:
        found = {label: _over_seeds([_series(rows, name, ALL) for rows in seeds]) for label, seeds in runs.items()}
        found = {label: points for label, points in found.items() if points}
        if not found:
            return None
        x = sorted({r for points in found.values() for r in points})
        series = {label: [points[r][0] if r in points else None for r in x] for label, points in found.items()}
        spread = {label: [points[r][1] if r in points else None for r in x] for label, points in found.items()}
        return Panel(self.title, self.text, "lines", [r + 1 for r in x], series, spread, y_name=self.unit)

    def _maps(self, name: str, runs: Runs) -> list[Panel]:
        panels = []
        for label, seeds in runs.items():
            groups = dict.fromkeys(key for rows in seeds for row in rows for key in (row.get("measures") or {}).get(name, {}) if key != ALL)
            found = {group: _over_seeds([_series(rows, name, group) for rows in seeds]) for group in groups}
            x = sorted({r for points in found.values() for r in points})
            if len(groups) > 1 and x:
                series = {group: [points[r][0] if r in points else None for r in x] for group, points in found.items()}
                panels.append(Panel(f"{self.title} by layer: {label}", self.text, "heat", [r + 1 for r in x], series, y_name=self.unit))
        return panels


def defined(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """The same numbers, with None for those that are not finite."""
    return {k: None if v is None or not math.isfinite(v) else float(v) for k, v in values.items()}


def _series(rows: Sequence[Mapping[str, Any]], name: str, key: str) -> dict[int, float]:
    """Round -> value of one series in one run."""
    pairs = ((int(row["round"]), (row.get("measures") or {}).get(name, {}).get(key)) for row in rows)
    return {r: float(v) for r, v in pairs if v is not None}


def _over_seeds(runs: Sequence[Mapping[int, float]]) -> dict[int, tuple[float, float | None]]:
    """Round -> (mean, standard deviation with n - 1) over the seeds that have the round; no deviation of a single one."""
    found: dict[int, tuple[float, float | None]] = {}
    for r in sorted({r for run in runs for r in run}):
        values = [run[r] for run in runs if r in run]
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else None
        found[r] = mean, spread
    return found
