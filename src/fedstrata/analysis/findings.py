"""What a comparison says, found from its runs: see the records for what each number means."""

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
    """Everything that a comparison says.

    Each headline score is a family of tests of its own: p-values are corrected over the methods for each of them, not
    over both together.

    Args:
        comparison: finished or not; methods without a finished run have a line without scores.
        target: score that the "to target" columns measure the way to; default the amount of an accuracy budget,
            otherwise for each headline 95 % of the best mean of it (for an error: the best mean over 0.95).
    Raises:
        ConfigError: a target that is not a finite number, or an accuracy outside (0, 1].

    Source of the statistics: :mod:`fedstrata.analysis.statistics`.
    """
    book = _Book(comparison)
    _possible(target, regression=book.regression)
    targets = _targets(book, target)
    lines = tuple(_line(book, entry.label, entry.method, targets) for entry in comparison.entries)
    chance = comparison.facts.chance
    told = informative(comparison, lines, book.headline, chance)
    lines = tuple(replace(line, informative=told) for line in lines)
    found = Findings(
        answer="",
        headline=book.headline,
        larger=not book.regression,
        chance=chance,
        target=targets.get(book.headline[0]) if book.headline else None,
        lines=lines,
        baseline=comparison.baseline,
        seeds=len(comparison.seeds),
        targets=targets,
    )
    return replace(found, answer=answer(found), flags=flags(comparison, found))


@dataclass(frozen=True)
class _Book:
    """The numbers of all runs, looked up once."""

    comparison: Comparison

    @property
    def regression(self) -> bool:
        return not self.comparison.facts.has_accuracy

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(entry.label for entry in self.comparison.entries)

    @cached_property
    def scores(self) -> dict[str, dict[int, dict[str, float]]]:
        """Label -> seed -> score -> value, of finished runs."""
        return {
            label: {
                seed: scores_of(self.comparison.results[label, seed], regression=self.regression)
                for seed in self.comparison.seeds
                if (label, seed) in self.comparison.results
            }
            for label in self.labels
        }

    def values(self, label: str, score: str) -> dict[int, float]:
        """Seed -> value."""
        return {seed: found[score] for seed, found in self.scores[label].items() if score in found}

    def curve(self, label: str, seed: int, score: str) -> list[Point]:
        return points(
            self.comparison.results[label, seed], personal=score.startswith("personal"), regression=self.regression
        )

    @cached_property
    def headline(self) -> tuple[str, ...]:
        """Scores to answer on: chosen on validation data where every finished run has such a score."""
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
        """Headline -> (ours, theirs) -> difference, corrected over all pairs."""
        found = {}
        for score in self.headline:
            pairs = [(a, b) for place, a in enumerate(self.labels) for b in self.labels[place + 1 :]]
            told = _differences(
                [(self.values(a, score), self.values(b, score)) for a, b in pairs], larger=not self.regression
            )
            found[score] = {pair: it for pair, it in zip(pairs, told, strict=True) if it is not None}
            found[score] |= {(b, a): _turned(it) for (a, b), it in found[score].items()}
        return found

    @cached_property
    def differences(self) -> dict[str, dict[str, Difference]]:
        """Headline -> label -> difference to the baseline, corrected over the methods."""
        found = {}
        for score in self.headline:
            others = [label for label in self.labels if label != self.comparison.baseline]
            theirs = self.values(self.comparison.baseline, score)
            told = _differences([(self.values(label, score), theirs) for label in others], larger=not self.regression)
            found[score] = {label: it for label, it in zip(others, told, strict=True) if it is not None}
            if theirs:
                found[score][self.comparison.baseline] = Difference(
                    0.0, None, None, None, None, "baseline", len(theirs)
                )
        return found

    @cached_property
    def fronts(self) -> dict[str, dict[str, frozenset[str]]]:
        """Headline -> label -> costs against which it lies on the Pareto front of means."""
        found = {}
        for score in self.headline:
            means = [mean(list(self.values(label, score).values())) for label in self.labels]
            on = {}
            for cost in ("bytes", "flops"):
                spent = [mean(self.costs(label, cost)) for label in self.labels]
                on[cost] = statistics.front(list(zip(spent, means, strict=True)), larger=not self.regression)
            found[score] = {
                label: frozenset(cost for cost, told in on.items() if told[place])
                for place, label in enumerate(self.labels)
            }
        return found

    def costs(self, label: str, cost: str) -> list[float]:
        """Of the finished runs, by seed."""
        return [told[cost] for result in self.comparison.runs(label) if cost in (told := costs_of(result))]


def _differences(pairs: Sequence[tuple[Values, Values]], *, larger: bool) -> list[Difference | None]:
    """Paired differences of one family; None for pairs without a common seed."""
    found = []
    for ours, theirs in pairs:
        _, a, b = statistics.pairs(ours, theirs)
        found.append(statistics.paired(a, b))
    ps = [None if it is None or it.n < 3 else it.p for it in found]
    return [
        None if it is None else _judged(it, p, c, larger=larger)
        for it, p, c in zip(found, ps, statistics.holm(ps), strict=True)
    ]


def _judged(it: statistics.Paired, p: float | None, corrected: float | None, *, larger: bool) -> Difference:
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


def _turned(it: Difference) -> Difference:
    """The same difference seen from the other side."""
    turned: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
    verdict = turned.get(it.verdict, it.verdict)
    low, high = (None if it.high is None else -it.high), (None if it.low is None else -it.low)
    return replace(it, mean=-it.mean, low=low, high=high, verdict=verdict)


def _line(book: _Book, label: str, method: str, targets: Mapping[str, float]) -> Line:
    names = list(dict.fromkeys(name for found in book.scores[label].values() for name in found))
    costs = {cost: values for cost in COSTS if (values := book.costs(label, cost))}
    reached = {score: _reached(book, label, score, target) for score, target in targets.items()}
    first = book.headline[0] if book.headline else ""
    fronts = {score: book.fronts[score][label] for score in book.headline}
    own, unused = _own(book, label)
    return Line(
        label,
        method,
        scores={name: spread(list(book.values(label, name).values())) for name in names},
        costs={cost: spread(values) for cost, values in costs.items()},
        differences={
            score: book.differences[score][label] for score in book.headline if label in book.differences[score]
        },
        margins={score: told for score in book.headline if (told := _margin(book, label, score)) is not None},
        target=reached.get(first),
        targets=reached,
        front=fronts.get(first, frozenset()),
        fronts=fronts,
        stability=_stability(book, label),
        fairness=_fairness(book, label),
        own=own,
        unused=unused,
    )


def spread(values: Sequence[float]) -> Spread:
    """Mean, standard deviation and values."""
    return Spread(*statistics.mean_std(values), tuple(values))


def _margin(book: _Book, label: str, score: str) -> tuple[str, Difference] | None:
    """The best other competitor with whom there are common seeds, and the difference to it."""
    rivals = {b: it for (a, b), it in book.margins[score].items() if a == label}
    if not rivals:
        return None
    sign = -1.0 if book.regression else 1.0
    best = max(rivals, key=lambda name: sign * (mean(list(book.values(name, score).values())) or 0.0))
    return best, rivals[best]


def _own(book: _Book, label: str) -> tuple[bool, bool]:
    """(clients use models of their own, nobody uses the shared one: the run says that some layers are private to
    clients).
    """
    personal, shared = (
        ("personal_rmse", "shared_on_clients_rmse") if book.regression else ("personal", "shared_on_clients")
    )
    mine, theirs = book.values(label, personal), book.values(label, shared)
    own = any(abs(mine[seed] - theirs[seed]) > 1e-9 for seed in mine if seed in theirs)
    return own, any(result.summary.get("num_private_tensors") for result in book.comparison.runs(label))


def _stability(book: _Book, label: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for score, prefix in zip(book.headline, ("", "personal_"), strict=False):
        told = [
            statistics.stability([point.score for point in book.curve(label, seed, score)], larger=not book.regression)
            for seed in book.scores[label]
        ]
        found[f"{prefix}std"] = mean([std for std, _ in told if std is not None])
        found[f"{prefix}drop"] = max((drop for _, drop in told if drop is not None), default=None)
    return found


def _fairness(book: _Book, label: str) -> dict[str, float | Sequence[int] | None]:
    runs = [
        scores
        for result in book.comparison.runs(label)
        if (scores := client_scores(result, regression=book.regression))
    ]
    if not runs:
        return {}
    worst = [
        told for scores in runs if (told := statistics.worst_tenth(scores, larger=not book.regression)) is not None
    ]
    spreads = [statistics.mean_std(scores)[1] or 0.0 for scores in runs]
    everyone = [score for scores in runs for score in scores]
    counts = None if book.regression else statistics.histogram(everyone)
    return {"worst10": mean(worst), "spread": mean(spreads), "clients": float(len(everyone)), "histogram": counts}


def _possible(target: float | None, *, regression: bool) -> None:
    if target is None:
        return
    if not statistics.known(target) or (target <= 0 if regression else not 0 < target <= 1):
        wanted = "an error above 0" if regression else "an accuracy in (0, 1], such as 0.6"
        raise ConfigError(f"target is {target}; it is {wanted}.")


def _targets(book: _Book, target: float | None) -> dict[str, float]:
    budget = book.comparison.budget
    if target is None and budget is not None and budget.kind == "accuracy":
        target = budget.amount
    found = {}
    for score in book.headline:
        means = [told for label in book.labels if (told := mean(list(book.values(label, score).values()))) is not None]
        if target is not None:
            found[score] = target
        elif means:
            found[score] = min(means) / SHARE if book.regression else max(means) * SHARE
    return found


def _reached(book: _Book, label: str, score: str, target: float) -> Reached:
    """The first evaluated round at or beyond the target, seed by seed."""
    hits = []
    for seed in book.scores[label]:
        curve = book.curve(label, seed, score)
        place = statistics.first_reaching([point.score for point in curve], target, larger=not book.regression)
        if place is not None:
            hits.append(curve[place])
    seeds = (len(hits), len(book.scores[label]))
    if not hits:
        return Reached(seeds, None, None, None, None)
    ways = [[float(getattr(point, name)) for point in hits] for name in ("round", "bytes", "flops", "seconds")]
    return Reached(seeds, *(spread(way) for way in ways))
