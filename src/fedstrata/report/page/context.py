"""Share what all parts of a page need: the comparison, its findings, short names, and a stroke for each method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedstrata.analysis.comparison import Comparison
from fedstrata.analysis.records import Findings, Line, Spread
from fedstrata.report.page.text import names
from fedstrata.report.page.theme import Stroke, strokes
from fedstrata.runs.result import Result

HEADS = {
    "selected": "chosen round",
    "rmse_selected": "RMSE, chosen round",
    "window": "last tenth",
    "rmse_window": "RMSE, last tenth",
    "final": "last round",
    "rmse": "RMSE, last round",
    "best": "best round",
    "r2": "R2",
    "personal_selected": "personal, chosen round",
    "personal_rmse_selected": "personal RMSE, chosen round",
    "personal": "personal, last round",
    "personal_rmse": "personal RMSE",
    "personal_weighted": "personal, by samples",
    "personal_weighted_rmse": "personal RMSE, by samples",
    "personal_std": "personal, spread",
    "personal_rmse_std": "personal RMSE, spread",
    "personal_worst10": "personal, worst tenth",
    "personal_worst10_rmse": "personal RMSE, worst tenth",
    "shared_on_clients": "shared, on clients",
    "shared_on_clients_rmse": "shared RMSE, on clients",
    "heldout": "held-out, before",
    "heldout_adapted": "held-out, adapted",
    "heldout_own": "held-out, personalised",
    "heldout_rmse": "held-out RMSE, before",
    "heldout_adapted_rmse": "held-out RMSE, adapted",
    "heldout_own_rmse": "held-out RMSE, personalised",
}
"""Scores as heads of columns, in the order of the columns; :func:`head` serves the rest."""


def head(key: str) -> str:
    """Return a score as the head of a column."""
    return HEADS.get(key, key.replace("_", " "))


@dataclass(frozen=True)
class PageContext:
    """Holds a comparison, ready to be drawn.

    Attributes:
        comparison, findings: lines of the findings are in the order of the entries.
    """

    comparison: Comparison
    findings: Findings

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """List the whole labels, in order."""
        return tuple(entry.label for entry in self.comparison.entries)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """List short names that differ, in order."""
        return names(self.labels)

    def name_of(self, label: str) -> str:
        """Return the short name of a label; of one that is no entry, the shortened label."""
        return self.names[self.labels.index(label)] if label in self.labels else names([label])[0]

    @cached_property
    def alone(self) -> bool:
        """Return whether there is only one method, so nothing is compared."""
        return len(self.labels) == 1

    @cached_property
    def baseline(self) -> int | None:
        """Return the index of the method that the others are compared with."""
        return (
            None
            if self.alone or self.comparison.baseline not in self.labels
            else self.labels.index(self.comparison.baseline)
        )

    @cached_property
    def has_target(self) -> bool:
        """Return whether the target is meaningful: it was set, or comes from the best of several methods."""
        budget = self.comparison.budget
        return not self.alone or (budget is not None and budget.kind == "accuracy")

    @cached_property
    def strokes(self) -> tuple[Stroke, ...]:
        """Return how each method is drawn."""
        return strokes(len(self.labels), self.baseline)

    @cached_property
    def lines(self) -> tuple[Line | None, ...]:
        """Return the findings on each entry; None where none of its runs finished."""
        by_label = {line.label: line for line in self.findings.lines}
        return tuple(by_label.get(label) for label in self.labels)

    @cached_property
    def runs(self) -> tuple[list[Result], ...]:
        """Return the finished runs of each entry, by seed."""
        return tuple(self.comparison.runs(label) for label in self.labels)

    @cached_property
    def classes(self) -> bool:
        """Return whether scores are accuracies."""
        return self.comparison.facts.has_accuracy

    @cached_property
    def main_score(self) -> str | None:
        """Return the score that methods are ranked by."""
        return self.findings.headline[0] if self.findings.headline else None

    def score(self, index: int, key: str) -> Spread | None:
        """Return a score of a method."""
        line = self.lines[index]
        return line.scores.get(key) if line else None

    def cost(self, index: int, key: str) -> Spread | None:
        """Return a cost of a method."""
        line = self.lines[index]
        return line.costs.get(key) if line else None

    def has(self, key: str) -> bool:
        """Return whether any method has this score."""
        return any(line is not None and key in line.scores for line in self.lines)

    def best(self, key: str, *, larger: bool | None = None) -> int | None:
        """Return the index of the best method by a score."""
        means = [
            (spread.mean, index) for index in range(len(self.labels)) if (spread := self.score(index, key)) is not None
        ]
        if not means:
            return None
        larger = self.findings.larger if larger is None else larger
        return max(means, key=lambda pair: (pair[0], -pair[1]))[1] if larger else min(means)[1]
