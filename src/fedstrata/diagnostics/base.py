"""The interface of measures: a snapshot of a trained round, numbers computed from it, and panels for a report."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from torch import Tensor

from fedstrata.core.layout import Layout
from fedstrata.core.params import Model, Params
from fedstrata.core.state import State
from fedstrata.diagnostics.panel import Panel

if TYPE_CHECKING:
    from fedstrata.core.piece import Reply

ALL = "all"
"""Name of the series of the whole model, beside those of single layer groups."""

Runs: TypeAlias = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
"""Label of a method -> its runs, one for each seed -> rows of rounds.jsonl."""


@dataclass(frozen=True)
class RoundSnapshot:
    """A round as a measure sees it, read only: a measure never changes what it receives.

    Attributes:
        round: zero-based.
        layout: names and groups of the model.
        before, after: the server's model before and after the round, with statistics.
        replies: accepted replies in cohort order, as the server received them; a lossy upload is lossy here.
        sent: what the server sent to each of them: full parameters with statistics. An update is the difference from
            that, which is ``before`` itself unless a piece sends each client a different model (FedPhoenix' resets).
        served: the server's model as it is evaluated after the round: ``after``, with the norms of one client where
            norm layers stay with clients.
        server_states: server states after the round, by piece.
        features: ``features(params, most)`` returns ([N, d] inputs of the head, [N] targets) of up to ``most`` test
            samples.
        loss: ``loss(client, params, most)`` returns the mean plain loss on up to ``most`` evenly spaced training
            samples of a client, always the same ones, in evaluation mode. Norms use the running statistics of
            ``params``; they use the batch under ``bn=batch``, and for ``params.frozen("batch_stats")``.
    """

    round: int
    layout: Layout
    before: Model
    after: Model
    replies: Sequence[Reply]
    sent: Sequence[Model]
    served: Model
    server_states: Mapping[str, State]
    features: Callable[[Model, int], tuple[Tensor, Tensor]]
    loss: Callable[[int, Model, int], float]

    def final_params(self, i: int) -> Model:
        """Return the model that the client of reply ``i`` ended with: what was sent, its update and its local tensors.

        With statistics. It is the model as the server can know it: a lossy update differs from the client's.
        """
        reply, start = self.replies[i], self.sent[i]
        moved = start.params | (start.pick(reply.delta) + reply.delta)
        model = Model(moved, start.statistics | reply.statistics)
        return replace_tensors(model, reply.client_state.tensors)


class PanelText(NamedTuple):
    """The heading, the explanation and the unit of a panel."""

    title: str
    text: str
    unit: str


@dataclass(frozen=True)
class Measure(ABC):
    """Computes numbers from trained rounds.

    Subclasses are frozen dataclasses of settings. They override :meth:`measure`, and :meth:`panels` where curves are
    not enough.

    Class attributes:
        title: a few words for a heading.
        text: what is measured, in which unit, what high and low mean, and the source.
        unit: for the axis.
    """

    title: ClassVar[str] = ""
    text: ClassVar[str] = ""
    unit: ClassVar[str] = ""

    @abstractmethod
    def measure(self, snapshot: RoundSnapshot) -> Mapping[str, float | None]:
        """Return the numbers of this round, by series.

        A series is "all" for the whole model, the name of a layer group, or a name that the measure chooses. Called
        after evaluated rounds. None, or a number that is not finite, means undefined.
        """

    def panels(self, name: str, runs: Runs) -> list[Panel]:
        """Build what a report shows.

        Default: the curve of the whole model, with its spread over seeds, and for each method a map of layer groups.
        """
        return default_panels(PanelText(self.title, self.text, self.unit), name, runs)


def default_panels(text: PanelText, name: str, runs: Runs) -> list[Panel]:
    """Build the curve of the whole model, with its spread over seeds, and for each method a map of layer groups.

    Series without numbers are left out.
    """
    curve = _curve(text, name, runs)
    return ([curve] if curve is not None else []) + _maps(text, name, runs)


def _curve(text: PanelText, name: str, runs: Runs) -> Panel | None:
    """Build the curves of the series "all", one for each method; None without numbers."""
    by_label = {label: _over_seeds([_series(rows, name, ALL) for rows in seeds]) for label, seeds in runs.items()}
    by_label = {label: points for label, points in by_label.items() if points}
    if not by_label:
        return None
    x = sorted({r for points in by_label.values() for r in points})
    series = {label: [points[r][0] if r in points else None for r in x] for label, points in by_label.items()}
    spread = {label: [points[r][1] if r in points else None for r in x] for label, points in by_label.items()}
    return Panel(text.title, text.text, "lines", [r + 1 for r in x], series, spread, y_name=text.unit)


def _maps(text: PanelText, name: str, runs: Runs) -> list[Panel]:
    """Build a heat map of the layer groups for each method that has at least two of them."""
    panels = []
    for label, seeds in runs.items():
        groups = dict.fromkeys(
            key for rows in seeds for row in rows for key in (row.get("measures") or {}).get(name, {}) if key != ALL
        )
        by_group = {group: _over_seeds([_series(rows, name, group) for rows in seeds]) for group in groups}
        x = sorted({r for points in by_group.values() for r in points})
        if len(groups) > 1 and x:
            series = {group: [points[r][0] if r in points else None for r in x] for group, points in by_group.items()}
            title = f"{text.title} by layer: {label}"
            panels.append(Panel(title, text.text, "heat", [r + 1 for r in x], series, y_name=text.unit))
    return panels


def replace_tensors(model: Model, tensors: Mapping[str, Tensor]) -> Model:
    """Return a copy of a model with the named parameters and statistics replaced."""
    weights, statistics = ({n: t for n, t in tensors.items() if n in part} for part in (model, model.statistics))
    return Model(
        model.params | Params.of(weights) if weights else model.params,
        model.statistics | Params.of(statistics) if statistics else model.statistics,
    )


def defined(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the numbers with None for those that are not finite."""
    return {k: None if v is None or not math.isfinite(v) else float(v) for k, v in values.items()}


def _series(rows: Sequence[Mapping[str, Any]], name: str, key: str) -> dict[int, float]:
    """Collect round -> value of one series in one run."""
    pairs = ((int(row["round"]), (row.get("measures") or {}).get(name, {}).get(key)) for row in rows)
    return {r: float(v) for r, v in pairs if v is not None}


def _over_seeds(runs: Sequence[Mapping[int, float]]) -> dict[int, tuple[float, float | None]]:
    """Compute round -> (mean, standard deviation with n - 1) over the seeds that have the round.

    The deviation of a single seed is None.
    """
    points: dict[int, tuple[float, float | None]] = {}
    for r in sorted({r for run in runs for r in run}):
        values = [run[r] for run in runs if r in run]
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else None
        points[r] = mean, spread
    return points
