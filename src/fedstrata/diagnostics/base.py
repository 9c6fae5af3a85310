"""The one interface of measures: a look at a round that was trained, numbers out of it, and panels for a report."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from torch import Tensor

from fedstrata.core.layout import Layout
from fedstrata.core.params import Params
from fedstrata.core.state import State
from fedstrata.diagnostics.panel import Panel

if TYPE_CHECKING:
    from fedstrata.core.piece import Reply

ALL = "all"
"""The series of the whole model, beside those of single layer groups."""

Runs: TypeAlias = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
"""Label of a method -> its runs, one a seed -> rows of rounds.jsonl."""


@dataclass(frozen=True)
class RoundSnapshot:
    """A round as a measure sees it. It is for reading: a measure never changes what it is given.

    Attributes:
        round: zero-based.
        layout: names and groups of the model.
        before, after: the server's model before and after the round, with statistics.
        replies: accepted replies in cohort order, as the server got them; an upload that was made lossy is lossy here.
        sent: what the server sent to each of them: full parameters with statistics. An update is the difference from
            that, which is ``before`` itself unless a piece sends models of its own (FedPhoenix' reset copies).
        served: the server's model as it is evaluated after the round: ``after``, with the norms of one client where
            norm layers stay with clients.
        slots: server slots after the round, by piece.
        features: ``features(params, most)`` gives ([N, d] features in front of the head, [N] targets) of up to ``most``
            test samples.
        loss: ``loss(client, params, most)`` gives the mean plain loss on up to ``most`` evenly spaced training samples
            of a client, always the same ones, in evaluation mode. Norms use the running statistics of ``params``; they
            look at the batch under ``bn=batch``, and for ``params.frozen("batch")``.
    """

    round: int
    layout: Layout
    before: Params
    after: Params
    replies: Sequence[Reply]
    sent: Sequence[Params]
    served: Params
    slots: Mapping[str, State]
    features: Callable[[Params, int], tuple[Tensor, Tensor]]
    loss: Callable[[int, Params, int], float]

    def end(self, i: int) -> Params:
        """The model that the client of reply ``i`` ended with: what it was sent, plus its update, and what it keeps for
        itself; with statistics.

        As far as the server got it: a lossy update gives another model than the client has.
        """
        reply, start = self.replies[i], self.sent[i]
        own = {n.removeprefix("kept/"): t for n, t in reply.row.items() if n.startswith("kept/")}
        moved = start | (start.pick(reply.delta) + reply.delta)
        assert start.buffers is not None, "what is sent comes with statistics"
        return with_tensors(Params(moved.flat, moved.spec, buffers=start.buffers | reply.statistics), own)


class PanelText(NamedTuple):
    """What the heading, the text and the axis of a panel say."""

    title: str
    text: str
    unit: str


@dataclass(frozen=True)
class Measure(ABC):
    """A look at training. Subclasses are frozen dataclasses of settings; they override :meth:`look`, and :meth:`panels`
    where a curve is not enough.

    Class attributes:
        title: a few words for a heading.
        text: what is measured, in which unit, what high and low mean, and the source.
        unit: for the axis.
    """

    title: ClassVar[str] = ""
    text: ClassVar[str] = ""
    unit: ClassVar[str] = ""

    @abstractmethod
    def look(self, look: RoundSnapshot) -> Mapping[str, float | None]:
        """Numbers of this round, by series: "all" for the whole model, names of layer groups, or what the measure calls
        them.

        Called after evaluated rounds. None, or a number that is not finite, stands for undefined.
        """

    def panels(self, name: str, runs: Runs) -> list[Panel]:
        """What a report shows.

        Default: the whole model's curve a method, with its spread over seeds, and a map of layer groups a method.
        """
        return drawn(PanelText(self.title, self.text, self.unit), name, runs)


def drawn(shown: PanelText, name: str, runs: Runs) -> list[Panel]:
    """The whole model's curve a method, with its spread over seeds, and a map of layer groups a method.

    What has no numbers is left out.
    """
    curve = _curve(shown, name, runs)
    return ([curve] if curve is not None else []) + _maps(shown, name, runs)


def _curve(shown: PanelText, name: str, runs: Runs) -> Panel | None:
    found = {label: _over_seeds([_series(rows, name, ALL) for rows in seeds]) for label, seeds in runs.items()}
    found = {label: points for label, points in found.items() if points}
    if not found:
        return None
    x = sorted({r for points in found.values() for r in points})
    series = {label: [points[r][0] if r in points else None for r in x] for label, points in found.items()}
    spread = {label: [points[r][1] if r in points else None for r in x] for label, points in found.items()}
    return Panel(shown.title, shown.text, "lines", [r + 1 for r in x], series, spread, y_name=shown.unit)


def _maps(shown: PanelText, name: str, runs: Runs) -> list[Panel]:
    panels = []
    for label, seeds in runs.items():
        groups = dict.fromkeys(
            key for rows in seeds for row in rows for key in (row.get("measures") or {}).get(name, {}) if key != ALL
        )
        found = {group: _over_seeds([_series(rows, name, group) for rows in seeds]) for group in groups}
        x = sorted({r for points in found.values() for r in points})
        if len(groups) > 1 and x:
            series = {group: [points[r][0] if r in points else None for r in x] for group, points in found.items()}
            panels.append(
                Panel(
                    f"{shown.title} by layer: {label}",
                    shown.text,
                    "heat",
                    [r + 1 for r in x],
                    series,
                    y_name=shown.unit,
                )
            )
    return panels


def with_tensors(p: Params, tensors: Mapping[str, Tensor]) -> Params:
    """A copy of parameters with these in place of their own; statistics are told from parameters by their names."""
    assert p.buffers is not None, "models come with statistics"
    trained, kept = ({n: t for n, t in tensors.items() if n in part} for part in (p, p.buffers))
    moved = p | Params.of(trained) if trained else p
    return Params(moved.flat, p.spec, buffers=p.buffers | Params.of(kept) if kept else p.buffers, still=p.still)


def defined(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """The same numbers, with None for those that are not finite."""
    return {k: None if v is None or not math.isfinite(v) else float(v) for k, v in values.items()}


def _series(rows: Sequence[Mapping[str, Any]], name: str, key: str) -> dict[int, float]:
    """Round -> value of one series in one run."""
    pairs = ((int(row["round"]), (row.get("measures") or {}).get(name, {}).get(key)) for row in rows)
    return {r: float(v) for r, v in pairs if v is not None}


def _over_seeds(runs: Sequence[Mapping[int, float]]) -> dict[int, tuple[float, float | None]]:
    """Round -> (mean, standard deviation with n - 1) over the seeds that have the round.

    No deviation of a single one.
    """
    found: dict[int, tuple[float, float | None]] = {}
    for r in sorted({r for run in runs for r in run}):
        values = [run[r] for run in runs if r in run]
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else None
        found[r] = mean, spread
    return found
