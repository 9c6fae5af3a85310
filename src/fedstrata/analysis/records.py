"""Record what a comparison shows: means, spreads, paired differences, targets, fronts, fairness, flags, the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["better", "worse", "not shown", "no conclusion", "baseline"]


@dataclass(frozen=True)
class Spread:
    """Summarizes a number over seeds: mean, standard deviation (n - 1; None for one seed), and the values by seed."""

    mean: float
    std: float | None
    values: tuple[float, ...]

    @property
    def n(self) -> int:
        """Count the seeds."""
        return len(self.values)


@dataclass(frozen=True)
class Difference:
    """Describes a paired difference over seeds, ours minus theirs.

    Attributes:
        mean: of the differences by seed.
        low, high: 95 % interval (Student's t on the differences); None with fewer than 2 seeds.
        p: of the two-sided paired t-test; corrected: after Holm, over the methods of the comparison for a difference to
            the baseline, over all pairs of methods for a margin (the rival is picked by the data). None with fewer than
            3 seeds, and where all seeds differ by the same amount.
        verdict: better or worse only where ``corrected`` is under 0.05; "no conclusion" with fewer than 3 seeds or
            where the test is undefined.
        n: seeds that both have.
        note: why there is no p, for 3 seeds or more; otherwise "".
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    corrected: float | None
    verdict: Verdict
    n: int = 0
    note: str = ""


@dataclass(frozen=True)
class Reached:
    """Records when the seeds reached the target.

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
    """Describes one competitor's results.

    Attributes:
        label, method: of the entry.
        scores: score -> spread over seeds; only scores with values. For classes: the keys of ``accuracy`` in
            summary.json (selected, window, final, best, personal, personal_selected, personal_worst10, heldout,
            heldout_adapted, ...) and of ``metrics`` (auc, log_loss, ..., shared_on_clients). For a regression: rmse
            (last round), rmse_selected, rmse_window, r2, personal_rmse, personal_rmse_selected,
            heldout_rmse, ...: root mean squared errors in units of the target, smaller is better.
        costs: bytes_up, bytes_down, bytes, flops, seconds, eval_seconds, rounds -> spread.
        differences: score key -> paired difference to the baseline, for the headline scores; for the baseline itself
            zeros with verdict "baseline".
        margins: score key -> paired difference to the best *other* competitor by that score, and its label.
        target: the way to the target of the first headline; targets: headline -> the way to its target.
        front: which Pareto fronts (first headline against bytes, against flops) it lies on: subset of {"bytes",
            "flops"}; fronts: for each headline.
        stability: std: mean over seeds of the standard deviation of the evaluated score over the last tenth of the
            evaluations (at least 3);
            drop: the largest loss between two evaluations in any seed; personal_std and personal_drop: the same of the
                personal score.
        fairness: clients' own scores in the last round: worst10 and spread (standard deviation over clients), means
            over seeds; clients: how many scores; histogram: counts over [0, 1] in 20 bins, all seeds together (None for
            a regression).
        informative: False where the baseline is under twice chance, or under half of the way from chance to 1 where
            that is less.
        uses_personal: clients use personal models: their scores differ from those of the shared model.
        shared_unused: no client uses its shared model: layers of it are private.
    """

    label: str
    method: str
    scores: Mapping[str, Spread]
    costs: Mapping[str, Spread]
    differences: Mapping[str, Difference] = field(default_factory=dict)
    margins: Mapping[str, tuple[str, Difference]] = field(default_factory=dict)
    target: Reached | None = None
    targets: Mapping[str, Reached] = field(default_factory=dict)
    front: frozenset[str] = frozenset()
    fronts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    stability: Mapping[str, float | None] = field(default_factory=dict)
    fairness: Mapping[str, float | Sequence[int] | None] = field(default_factory=dict)
    informative: bool = True
    uses_personal: bool = False
    shared_unused: bool = False


@dataclass(frozen=True)
class Flag:
    """Warns a reader of something that must be known before believing a table.

    Attributes:
        code: failed-runs, few-seeds, not-informative, implausible, no-validation, short-run, ...; see ``caveats.py``.
        text: one sentence with the numbers.
    """

    code: str
    text: str


@dataclass(frozen=True)
class Findings:
    """Holds all findings of a comparison, ready to be written.

    Attributes:
        answer: one sentence, or two, with numbers and how sure they are.
        headline: score keys that are answered on: "selected" ("window" without validation) and, where clients test
            themselves, "personal_selected" ("personal"); for a regression "rmse_selected" ("rmse_window") and
            "personal_rmse_selected" ("personal_rmse").
        larger: whether a larger headline is better (False for an error).
        chance, target: None where there is none; target is that of the first headline, targets: headline -> target.
        lines: in the order of the entries.
        flags: in order of weight.
        baseline: label that differences are taken to.
        seeds: how many the comparison asked for.
    """

    answer: str
    headline: tuple[str, ...]
    larger: bool
    chance: float | None
    target: float | None
    lines: tuple[Line, ...]
    flags: tuple[Flag, ...] = ()
    baseline: str = ""
    seeds: int = 0
    targets: Mapping[str, float] = field(default_factory=dict)

    def line(self, label: str) -> Line:
        """Return one competitor's results.

        Raises:
            KeyError: no such label.
        """
        return {line.label: line for line in self.lines}[label]
