"""Compute what a comparison shows from its runs; the records say what each number means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fedstrata.analysis import statistics
from fedstrata.analysis.caveats import flags, informative
from fedstrata.analysis.comparison import Comparison
from fedstrata.analysis.conclusion import answer
from fedstrata.analysis.records import Difference, Findings, Flag, Line, Reached, Spread, Verdict
from fedstrata.analysis.scores import COSTS, Point, client_scores, costs_of, mean, points, scores_of
from fedstrata.common.errors import ConfigError

__all__ = ["Difference", "Findings", "Flag", "Line", "Reached", "Spread", "Verdict", "findings"]

ALPHA = 0.05
SHARE = 0.95  # of the best mean: the target where none is given
Values = Mapping[int, float]


def findings(comparison: Comparison, target: float | None = None) -> Findings:
    """Compute all findings of a comparison.

    Each headline score is a separate family of tests: p-values are corrected over the methods for each of them, not
    over both together.

    Args:
        comparison: finished or not; methods without a finished run have a line without scores.
        target: score that the "to target" columns measure the way to; default the amount of an accuracy budget,
            otherwise for each headline 95 % of the best mean of it (for an error: the best mean over 0.95).
    Raises:
        ConfigError: a target that is not a finite number, or an accuracy outside (0, 1].

    Source of the statistics: :mod:`fedstrata.analysis.statistics`.
    """
    table = _ScoreTable(comparison)
    _check_target(target, regression=table.regression)
    targets = _targets(table, target)
    lines = tuple(_line(table, entry.label, entry.method, targets) for entry in comparison.entries)
    chance = comparison.facts.chance
    is_informative = informative(comparison, lines, table.headline, chance)
    lines = tuple(replace(line, informative=is_informative) for line in lines)
    result = Findings(
        answer="",
        headline=table.headline,
        larger=not table.regression,
        chance=chance,
        target=targets.get(table.headline[0]) if table.headline else None,
        lines=lines,
        baseline=comparison.baseline,
        seeds=len(comparison.seeds),
        targets=targets,
    )
    return replace(result, answer=answer(result), flags=flags(comparison, result))


@dataclass(frozen=True)
class _ScoreTable:
    """Looks up the numbers of all runs once."""

    comparison: Comparison

    @property
    def regression(self) -> bool:
        return not self.comparison.facts.has_accuracy

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(entry.label for entry in self.comparison.entries)

    @cached_property
    def scores(self) -> dict[str, dict[int, dict[str, float]]]:
        """Map label -> seed -> score -> value, of finished runs."""
        return {
            label: {
                seed: scores_of(self.comparison.results[label, seed], regression=self.regression)
                for seed in self.comparison.seeds
                if (label, seed) in self.comparison.results
            }
            for label in self.labels
        }

    def values(self, label: str, score: str) -> dict[int, float]:
        """Map seed -> value."""
        return {seed: scores[score] for seed, scores in self.scores[label].items() if score in scores}

    def curve(self, label: str, seed: int, score: str) -> list[Point]:
        return points(
            self.comparison.results[label, seed], personal=score.startswith("personal"), regression=self.regression
        )

    @cached_property
    def headline(self) -> tuple[str, ...]:
        """Choose the headline scores: by validation data where every finished run has such a score."""
        runs = [scores for by_seed in self.scores.values() for scores in by_seed.values()]
        wanted = (
            (("rmse_selected", "rmse_window"), ("personal_rmse_selected", "personal_rmse"))
            if self.regression
            else (("selected", "window"), ("personal_selected", "personal"))
        )
        if not runs:
            return (wanted[0][1],)
        return tuple(
            chosen if all(chosen in scores for scores in runs if other in scores) else other
            for chosen, other in wanted
            if any(other in scores or chosen in scores for scores in runs)
        )

    @cached_property
    def margins(self) -> dict[str, dict[tuple[str, str], Difference]]:
        """Map headline -> (ours, theirs) -> difference, corrected over all pairs."""
        result = {}
        for score in self.headline:
            pairs = [(a, b) for place, a in enumerate(self.labels) for b in self.labels[place + 1 :]]
            corrected = _differences(
                [(self.values(a, score), self.values(b, score)) for a, b in pairs], larger=not self.regression
            )
            result[score] = {pair: it for pair, it in zip(pairs, corrected, strict=True) if it is not None}
            result[score] |= {(b, a): _reversed(it) for (a, b), it in result[score].items()}
        return result

    @cached_property
    def differences(self) -> dict[str, dict[str, Difference]]:
        """Map headline -> label -> difference to the baseline, corrected over the methods."""
        result = {}
        for score in self.headline:
            others = [label for label in self.labels if label != self.comparison.baseline]
            theirs = self.values(self.comparison.baseline, score)
            corrected = _differences(
                [(self.values(label, score), theirs) for label in others], larger=not self.regression
            )
            result[score] = {label: it for label, it in zip(others, corrected, strict=True) if it is not None}
            if theirs:
                result[score][self.comparison.baseline] = Difference(
                    0.0, None, None, None, None, "baseline", len(theirs)
                )
        return result

    @cached_property
    def fronts(self) -> dict[str, dict[str, frozenset[str]]]:
        """Map headline -> label -> costs against which the method is on the Pareto front of means."""
        result = {}
        for score in self.headline:
            means = [mean(list(self.values(label, score).values())) for label in self.labels]
            on = {}
            for cost in ("bytes", "flops"):
                spent = [mean(self.costs(label, cost)) for label in self.labels]
                on[cost] = statistics.front(list(zip(spent, means, strict=True)), larger=not self.regression)
            result[score] = {
                label: frozenset(cost for cost, members in on.items() if members[place])
                for place, label in enumerate(self.labels)
            }
        return result

    def costs(self, label: str, cost: str) -> list[float]:
        """List a cost of the finished runs, by seed."""
        return [run_costs[cost] for result in self.comparison.runs(label) if cost in (run_costs := costs_of(result))]


def _differences(pairs: Sequence[tuple[Values, Values]], *, larger: bool) -> list[Difference | None]:
    """Compute the paired differences of one family; None for pairs without a common seed."""
    paired = []
    for ours, theirs in pairs:
        _, a, b = statistics.pairs(ours, theirs)
        paired.append(statistics.paired(a, b))
    ps = [None if it is None or it.n < 3 else it.p for it in paired]
    return [
        None if it is None else _with_verdict(it, p, c, larger=larger)
        for it, p, c in zip(paired, ps, statistics.holm(ps), strict=True)
    ]


def _with_verdict(it: statistics.Paired, p: float | None, corrected: float | None, *, larger: bool) -> Difference:
    verdict: Verdict = "no conclusion"
    note = ""
    if it.n >= 3:
        if corrected is not None:
            verdict = "not shown" if corrected >= ALPHA else "better" if (it.mean > 0) == larger else "worse"
        elif it.mean == 0:
            verdict, note = "not shown", f"equal in all {it.n} seeds"
        else:
            note = f"the same difference in all {it.n} seeds: without spread there is no test"
    return Difference(it.mean, it.low, it.high, p, corrected, verdict, it.n, note)


def _reversed(it: Difference) -> Difference:
    """Return the same difference with the sides exchanged."""
    turned: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
    verdict = turned.get(it.verdict, it.verdict)
    low, high = (None if it.high is None else -it.high), (None if it.low is None else -it.low)
    return replace(it, mean=-it.mean, low=low, high=high, verdict=verdict)


def _line(table: _ScoreTable, label: str, method: str, targets: Mapping[str, float]) -> Line:
    names = list(dict.fromkeys(name for scores in table.scores[label].values() for name in scores))
    costs = {cost: values for cost in COSTS if (values := table.costs(label, cost))}
    reached = {score: _reached(table, label, score, target) for score, target in targets.items()}
    first = table.headline[0] if table.headline else ""
    fronts = {score: table.fronts[score][label] for score in table.headline}
    uses_personal, shared_unused = _model_use(table, label)
    return Line(
        label,
        method,
        scores={name: spread(list(table.values(label, name).values())) for name in names},
        costs={cost: spread(values) for cost, values in costs.items()},
        differences={
            score: table.differences[score][label] for score in table.headline if label in table.differences[score]
        },
        margins={score: margin for score in table.headline if (margin := _margin(table, label, score)) is not None},
        target=reached.get(first),
        targets=reached,
        front=fronts.get(first, frozenset()),
        fronts=fronts,
        stability=_stability(table, label),
        fairness=_fairness(table, label),
        uses_personal=uses_personal,
        shared_unused=shared_unused,
    )


def spread(values: Sequence[float]) -> Spread:
    """Summarize values by mean and standard deviation."""
    return Spread(*statistics.mean_std(values), tuple(values))


def _margin(table: _ScoreTable, label: str, score: str) -> tuple[str, Difference] | None:
    """Find the best other competitor with common seeds, and the difference to it."""
    rivals = {b: it for (a, b), it in table.margins[score].items() if a == label}
    if not rivals:
        return None
    sign = -1.0 if table.regression else 1.0
    best = max(rivals, key=lambda name: sign * (mean(list(table.values(name, score).values())) or 0.0))
    return best, rivals[best]


def _model_use(table: _ScoreTable, label: str) -> tuple[bool, bool]:
    """Return (whether clients use personal models, whether the shared model is unused since layers are private)."""
    personal, shared = (
        ("personal_rmse", "shared_on_clients_rmse") if table.regression else ("personal", "shared_on_clients")
    )
    mine, theirs = table.values(label, personal), table.values(label, shared)
    uses_personal = any(abs(mine[seed] - theirs[seed]) > 1e-9 for seed in mine if seed in theirs)
    return uses_personal, any(result.summary.get("num_private_tensors") for result in table.comparison.runs(label))


def _stability(table: _ScoreTable, label: str) -> dict[str, float | None]:
    result: dict[str, float | None] = {}
    for score, prefix in zip(table.headline, ("", "personal_"), strict=False):
        by_seed = [
            statistics.stability(
                [point.score for point in table.curve(label, seed, score)], larger=not table.regression
            )
            for seed in table.scores[label]
        ]
        result[f"{prefix}std"] = mean([std for std, _ in by_seed if std is not None])
        result[f"{prefix}drop"] = max((drop for _, drop in by_seed if drop is not None), default=None)
    return result


def _fairness(table: _ScoreTable, label: str) -> dict[str, float | Sequence[int] | None]:
    runs = [
        scores
        for result in table.comparison.runs(label)
        if (scores := client_scores(result, regression=table.regression))
    ]
    if not runs:
        return {}
    worst = [
        value for scores in runs if (value := statistics.worst_tenth(scores, larger=not table.regression)) is not None
    ]
    spreads = [statistics.mean_std(scores)[1] or 0.0 for scores in runs]
    everyone = [score for scores in runs for score in scores]
    counts = None if table.regression else statistics.histogram(everyone)
    return {"worst10": mean(worst), "spread": mean(spreads), "clients": float(len(everyone)), "histogram": counts}


def _check_target(target: float | None, *, regression: bool) -> None:
    if target is None:
        return
    if not statistics.known(target) or (target <= 0 if regression else not 0 < target <= 1):
        wanted = "an error above 0" if regression else "an accuracy in (0, 1], such as 0.6"
        raise ConfigError(f"target is {target}; it is {wanted}.")


def _targets(table: _ScoreTable, target: float | None) -> dict[str, float]:
    budget = table.comparison.budget
    if target is None and budget is not None and budget.kind == "accuracy":
        target = budget.amount
    result = {}
    for score in table.headline:
        means = [
            value for label in table.labels if (value := mean(list(table.values(label, score).values()))) is not None
        ]
        if target is not None:
            result[score] = target
        elif means:
            result[score] = min(means) / SHARE if table.regression else max(means) * SHARE
    return result


def _reached(table: _ScoreTable, label: str, score: str, target: float) -> Reached:
    """Find the first evaluated round at or beyond the target, seed by seed."""
    hits = []
    for seed in table.scores[label]:
        curve = table.curve(label, seed, score)
        place = statistics.first_reaching([point.score for point in curve], target, larger=not table.regression)
        if place is not None:
            hits.append(curve[place])
    seeds = (len(hits), len(table.scores[label]))
    if not hits:
        return Reached(seeds, None, None, None, None)
    ways = [[float(getattr(point, name)) for point in hits] for name in ("round", "bytes", "flops", "seconds")]
    return Reached(seeds, *(spread(way) for way in ways))
