"""What a comparison says: means, spreads, paired differences, targets, fronts, fairness, flags, and the answer in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["better", "worse", "not shown", "no conclusion", "baseline"]


@dataclass(frozen=True)
class Spread:
    """A number over seeds: mean, standard deviation (n - 1; None for one seed), and the values by seed."""

    mean: float
    std: float | None
    values: tuple[float, ...]

    @property
    def n(self) -> int:
        """Seeds."""
        return len(self.values)


@dataclass(frozen=True)
class Difference:
    """A paired difference over seeds, ours minus theirs.

    Attributes:
        mean: of the differences by seed.
        low, high: 95 % interval (Student's t on the differences); None with fewer than 2 seeds.
        p: of the two-sided paired t-test; corrected: after Holm over the methods of the comparison. None with fewer than 3 seeds.
        verdict: better or worse only where ``corrected`` is under 0.05; "no conclusion" with fewer than 3 seeds.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    corrected: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Reached:
    """The way to the target.

    Attributes:
        seeds: how many reached it, of how many.
        rounds, bytes, flops, seconds: over the seeds that did; None where none did.
    """

    seeds: tuple[int, int]
    rounds: Spread | None
    bytes: Spread | None
    flops: Spread | None
    seconds: Spread | None


@dataclass(frozen=True)
class Line:
    """One competitor's row.

    Attributes:
        label, method: of the entry.
        scores: key of ``accuracy`` in summary.json (selected, window, final, best, personal, personal_selected, personal_worst10, heldout,
            heldout_adapted, ...) or, for a regression, "rmse", "r2" -> spread over seeds; only keys with values.
        costs: bytes_up, bytes_down, bytes, flops, seconds, eval_seconds, rounds -> spread.
        differences: score key -> paired difference to the baseline, for the headline scores.
        margins: score key -> paired difference to the best *other* competitor by that score, and its label.
        target: the way to it.
        front: which Pareto fronts (headline against bytes, against flops) it lies on: subset of {"bytes", "flops"}.
        stability: mean over seeds of the standard deviation of the score over the last tenth of the evaluations (at least 3), and the largest
            drop between two evaluations.
        fairness: clients' own scores in the last round: worst tenth, spread, and a histogram's counts over [0, 1] in 20 bins, all seeds together.
        informative: False where the baseline is under twice chance.
    """

    label: str
    method: str
    scores: Mapping[str, Spread]
    costs: Mapping[str, Spread]
    differences: Mapping[str, Difference] = field(default_factory=dict)
    margins: Mapping[str, tuple[str, Difference]] = field(default_factory=dict)
    target: Reached | None = None
    front: frozenset[str] = frozenset()
    stability: Mapping[str, float | None] = field(default_factory=dict)
    fairness: Mapping[str, float | Sequence[int] | None] = field(default_factory=dict)
    informative: bool = True


@dataclass(frozen=True)
class Flag:
    """Something that a reader must know before believing a table.

    Attributes:
        code: few-seeds, not-informative, implausible, short-run, refused-replies, no-validation, failed-runs, side-by-side, ...
        text: one sentence with the numbers.
    """

    code: str
    text: str


@dataclass(frozen=True)
class Findings:
    """Everything that a comparison says, ready to be written down.

    Attributes:
        answer: one sentence, or two, with numbers and how sure they are.
        headline: score keys that are answered on, best first: "selected" (or "window" without validation) and, where clients test, "personal".
        larger: whether a larger headline is better (False for an error).
        chance, target: None where there is none.
        lines: in the order of the entries.
        flags: in order of weight.
    """

    answer: str
    headline: tuple[str, ...]
    larger: bool
    chance: float | None
    target: float | None
    lines: tuple[Line, ...]
    flags: tuple[Flag, ...] = ()
