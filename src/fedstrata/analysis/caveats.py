"""Check what a reader must know before believing a comparison: each check yields flags with their numbers, or none.

Codes, in order of weight: no-runs, failed-runs, few-seeds, not-informative, implausible, same-model, no-validation,
screened, nothing-learned, diverged, refused-replies, no-update, shared-unused, best-on-test, short-run, budget-unspent,
budget-overshoot, mixed-executors, side-by-side.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from fedstrata.analysis import statistics
from fedstrata.analysis.comparison import Comparison
from fedstrata.analysis.records import Findings, Flag, Line, Spread
from fedstrata.analysis.scores import Point, costs_of, points, score_label, threshold, threshold_text
from fedstrata.common.units import duration, size, work
from fedstrata.config.config import NON_RESULT_SETTINGS
from fedstrata.runs.result import Result

GAP = 0.02  # accuracy by which the best round on test data may exceed the honest score before it is flagged
LOST = 0.25  # share of what a run had gained that it may lose before it is flagged
RISE = 0.03  # share of the whole range of a curve by which it may still rise over its last third before it is flagged
SKEWS = ("label_skew", "target_shift", "feature_shift")  # the first that is known says how much clients differ
OVER = 0.05  # share of a budget by which the last round may exceed it before it is flagged


def flags(comparison: Comparison, findings: Findings) -> tuple[Flag, ...]:
    """Run all checks of one comparison.

    Args:
        comparison: with its runs.
        findings: of it, without flags.
    """
    return tuple(flag for check in _CHECKS for flag in check(comparison, findings))


def informative(comparison: Comparison, lines: Sequence[Line], headline: Sequence[str], chance: float | None) -> bool:
    """Return whether FedAvg (or else the baseline) reaches the threshold over chance in the first headline score.

    True where nothing is known.
    """
    base = _base(comparison.baseline, lines)
    spread = base.scores.get(headline[0]) if base is not None and headline else None
    return chance is None or spread is None or spread.mean >= threshold(chance)


def _base(baseline: str, lines: Sequence[Line]) -> Line | None:
    """Return FedAvg's line, or the baseline's where FedAvg is not compared."""
    return next((line for line in lines if line.method == "fedavg"), None) or next(
        (line for line in lines if line.label == baseline), None
    )


def _failed(comparison: Comparison, _findings: Findings) -> Iterator[Flag]:
    if not comparison.results:
        yield Flag("no-runs", "No run has finished.")
    if comparison.failures:
        (label, seed), why = next(iter(comparison.failures.items()))
        count = len(comparison.failures)
        text = (
            f"{count} of {count + len(comparison.results)} runs failed and {'is' if count == 1 else 'are'} missing from"
            " means and differences"
        )
        yield Flag("failed-runs", f"{text}; {label}, seed {seed}: {why.rstrip('.')}.")


def _few_seeds(comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    if len(comparison.entries) == 1 and len(comparison.seeds) < 3:
        yield Flag(
            "few-seeds",
            f"{_count(len(comparison.seeds), 'seed')}: repeat with other seeds before you"
            " attribute a score to the method.",
        )
    elif len(comparison.seeds) < 3:
        text = (
            f"{_count(len(comparison.seeds), 'seed')}: no conclusion about a difference between methods can be drawn;"
            " at least 3 seeds are needed."
        )
        yield Flag("few-seeds", text)
    if len(comparison.seeds) < 3:
        return
    short = [f"{line.label} ({_runs(comparison, line)})" for line in findings.lines if 0 < _runs(comparison, line) < 3]
    if short:
        yield Flag("few-seeds", f"Fewer than 3 finished seeds, so no conclusion: {', '.join(short)}.")


def _uninformative(comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    base = _base(comparison.baseline, findings.lines)
    if base is None or base.informative or findings.chance is None:
        return
    score = findings.headline[0]
    text = (
        f"{base.label} has {base.scores[score].mean:.3f} {score_label(score)} where chance is {findings.chance:.3f}:"
        " under"
        f" {threshold_text(findings.chance)}"
    )
    yield Flag(
        "not-informative",
        f"{text}, so differences between methods say little. Train longer, or on an easier partition.",
    )


def _floors(_comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    """Flag scores below the accuracy of a constant answer."""
    floor = findings.chance
    if floor is None or not findings.headline:
        return
    for line in findings.lines:
        spread = line.scores.get(findings.headline[0])
        if spread is None or line.shared_unused or spread.mean >= floor - _error(spread):
            continue
        reached = (
            f"{line.label} has {spread.mean:.3f} {score_label(findings.headline[0])}, under the {floor:.3f} of always"
            " naming"
            " the commonest class"
        )
        yield Flag("implausible", f"{reached}: something is wrong with it.")


def _local_on_iid(comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    """Flag local training that beats every method that shares, on iid data: clients then hold the same kind of data."""
    score = next((key for key in findings.headline if key.startswith("personal")), None)
    if score is None or not comparison.facts.law.startswith("iid"):
        return
    mine = next((line for line in findings.lines if line.method == "local" and score in line.scores), None)
    others = [line for line in findings.lines if line is not mine and score in line.scores]
    if mine is None or not others:
        return
    sign = 1 if findings.larger else -1
    best = max(others, key=lambda line: sign * line.scores[score].mean)
    gap = sign * (mine.scores[score].mean - best.scores[score].mean)
    if gap > _error(mine.scores[score], best.scores[score]):
        values = f"{mine.scores[score].mean:.3f} against {best.scores[score].mean:.3f} of {best.label}"
        yield Flag(
            "implausible",
            f"On iid data, clients that train alone have the best {score_label(score)} ({values}): methods that share"
            " are set"
            " up badly.",
        )


def _same_model(comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    """Flag methods whose final models are equal, bit for bit, in every seed."""
    by_digests: dict[tuple[str, ...], list[str]] = {}
    for line in findings.lines:
        runs = comparison.runs(line.label)
        digests = tuple(str(result.summary.get("model_sha256") or "") for result in runs)
        if runs and all(digests) and len(runs) == len(comparison.seeds):
            by_digests.setdefault(digests, []).append(line.label)
    for labels in by_digests.values():
        if len(labels) > 1:
            yield Flag(
                "same-model", f"{' and '.join(labels)} end with the same shared model, bit for bit, in every seed."
            )


def _no_validation(comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    if comparison.results and findings.headline and "selected" not in findings.headline[0]:
        text = (
            "No validation data for every run: no round could be chosen on them, so the headline is the"
            f" {score_label(findings.headline[0])}."
        )
        yield Flag("no-validation", f"{text} Set validation=0.1.")


def _screened(comparison: Comparison, _findings: Findings) -> Iterator[Flag]:
    screening = comparison.screening
    if screening is None or not screening.dropped:
        return
    text = f"Short runs dropped {_count(len(screening.dropped), 'method')} early: {', '.join(screening.dropped)}."
    if screening.share is not None and screening.low is not None and screening.high is not None:
        wrong = f"{len(screening.wrongly)} of {len(screening.audited)}"
        text += (
            f" Of those trained to the end anyway, {wrong} would have been kept ({screening.share:.0%}, between"
            f" {screening.low:.0%}"
            f" and {screening.high:.0%})."
        )
    else:
        text += " None was trained to the end to see whether that was right."
    yield Flag("screened", text)


def _courses(comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    """Flag runs that learn nothing, or lose what they had learned."""
    still, lost = [], []
    for line in findings.lines:
        for result in comparison.runs(line.label):
            curve = _curve(result, findings, personal=line.shared_unused)
            if len(curve) >= 3 and len({point.score for point in curve}) == 1:
                still.append(f"{line.label} seed {result.summary.get('seed', '-')} ({curve[0].score:.3f})")
            elif fell := _fell(curve, findings):
                lost.append(f"{line.label} seed {result.summary.get('seed', '-')} ({fell[0]:.3f}, then {fell[1]:.3f})")
    if still:
        yield Flag("nothing-learned", f"The same score in every evaluated round: {_some(still)}.")
    if lost:
        yield Flag("diverged", f"The last score is far under the best one: {_some(lost)}. A smaller local.lr may help.")


def _fell(curve: Sequence[Point], findings: Findings) -> tuple[float, float] | None:
    """Return (best, last) where more than a quarter of the gain over chance, or over the first score, was lost."""
    if len(curve) < 3:
        return None
    scores = [point.score for point in curve]
    best, last = (max if findings.larger else min)(scores), scores[-1]
    start = findings.chance if findings.chance is not None else scores[0]
    return (best, last) if abs(best - last) > LOST * abs(best - start) and abs(best - last) > GAP else None


def _replies(comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    refused: Counter[str] = Counter()
    idle: Counter[str] = Counter()
    for line in findings.lines:
        for result in comparison.runs(line.label):
            for code, count in (result.summary.get("refused") or {}).items():
                refused[f"{line.label}: {code}"] += count
            idle[line.label] += result.summary.get("rounds_without_update") or 0
    if refused:
        yield Flag(
            "refused-replies",
            "Replies were left out: " + _some([f"{count} of {what}" for what, count in refused.most_common()]) + ".",
        )
    if +idle:
        text = _some([f"{count} of {label}" for label, count in (+idle).most_common()])
        yield Flag("no-update", f"Rounds that left the model as it was: {text}.")


def _unused(_comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    lines = [
        line
        for line in findings.lines
        if line.shared_unused and findings.headline and findings.headline[0] in line.scores
    ]
    if lines:
        labels = ", ".join(f"{line.label} ({line.scores[findings.headline[0]].mean:.3f})" for line in lines)
        yield Flag(
            "shared-unused",
            f"No client uses the shared model of {labels}: layers are private to the clients. Judge it by its personal"
            " models.",
        )


def _best_on_test(_comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    gaps = []
    for line in findings.lines:
        spread, best = line.scores.get(findings.headline[0]) if findings.headline else None, line.scores.get("best")
        if spread is not None and best is not None and best.mean - spread.mean > max(GAP, 2 * (spread.std or 0.0)):
            gaps.append(f"{line.label} ({best.mean:.3f} against {spread.mean:.3f})")
    if gaps:
        text = f"The best round on test data is far above the {score_label(findings.headline[0])}: {_some(gaps)}."
        yield Flag("best-on-test", f"{text} Compare papers that report the best round with that column only.")


def _short(comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    """Flag methods whose score still improves by a share of its whole gain over the last third.

    Tests are corrected over the methods.
    """
    rises = [
        _rise(
            [_curve(result, findings, personal=line.shared_unused) for result in comparison.runs(line.label)],
            larger=findings.larger,
        )
        for line in findings.lines
    ]
    sure = statistics.holm([None if it is None or it[1] < RISE else it[2] for it in rises])
    rising = [
        f"{line.label} ({it[0]:+.3f})"
        for line, it, p in zip(findings.lines, rises, sure, strict=True)
        if it is not None and p is not None and p < 0.05
    ]
    if rising:
        text = f"Still getting better over the last third of the rounds: {_some(rising)}."
        yield Flag("short-run", f"{text} A short run proves nothing about the end of a long one.")


def _rise(curves: Sequence[Sequence[Point]], *, larger: bool) -> tuple[float, float, float] | None:
    """Measure how much curves still improve over their last third; None with too few evaluations.

    Returns (change by straight lines, its share of the whole range, one-sided p of an improvement).

    With 3 seeds or more the p is that of a t-test over the seeds' slopes; otherwise that of the slope of their mean.
    """
    sign = 1.0 if larger else -1.0
    shortest = min((len(curve) for curve in curves), default=0)
    if shortest < 6:
        return None
    third = max(4, shortest // 3)
    ends = [[sign * point.score for point in curve][-third:] for curve in curves]
    whole = math.fsum(max(p.score for p in curve) - min(p.score for p in curve) for curve in curves) / len(curves)
    slopes = [line[0] for end in ends if (line := statistics.slope(end)) is not None]
    if not slopes or not whole:
        return None
    test = statistics.paired(slopes, [0.0] * len(slopes)) if len(slopes) >= 3 else None
    if test is not None and test.p is not None:
        p = test.p / 2 if test.mean > 0 else 1 - test.p / 2
    else:
        middle = statistics.slope([math.fsum(at) / len(at) for at in zip(*ends, strict=True)])
        p = 1.0 if middle is None else middle[1]
    gain = math.fsum(slopes) / len(slopes) * (third - 1)
    return sign * gain, gain / whole, p


def _budget(comparison: Comparison, findings: Findings) -> Iterator[Flag]:
    budget = comparison.budget
    if budget is None:
        return
    unspent, over = [], []
    for line in findings.lines:
        for result in comparison.runs(line.label):
            name = f"{line.label} seed {result.summary.get('seed', '-')}"
            spent = costs_of(result).get(budget.kind)
            if not result.summary.get("stopped_by"):
                unspent.append(name)
            elif spent is not None and spent > (1 + OVER) * budget.amount:
                over.append(f"{name} ({_AMOUNT[budget.kind](spent)})")
    amount = f"{budget.amount:.3f}" if budget.kind == "accuracy" else _AMOUNT[budget.kind](budget.amount)
    if unspent:
        what = (
            "did not reach the accuracy"
            if budget.kind == "accuracy"
            else "ended with their last round before the budget"
        )
        yield Flag(
            "budget-unspent", f"{_count(len(unspent), 'run')} {what} of {amount}: {_some(unspent)}. Set more rounds."
        )
    if over:
        yield Flag(
            "budget-overshoot",
            f"A run ends with the round that reaches the budget of {amount}; more than 5 % over it: {_some(over)}.",
        )


_AMOUNT: dict[str, Callable[[float | None], str]] = {"bytes": size, "flops": work, "seconds": duration}


def _timings(comparison: Comparison, _findings: Findings) -> Iterator[Flag]:
    executors = Counter(
        f"{result.summary.get('executor', '-')} with {_count(result.summary.get('workers') or 1, 'worker')}"
        for result in comparison.results.values()
    )
    if len(executors) > 1:
        counts = ", ".join(f"{count} by {name}" for name, count in executors.most_common())
        yield Flag(
            "mixed-executors",
            f"Runs were trained in different ways ({counts}): do not compare their seconds; scores and bytes are"
            " comparable.",
        )
    if comparison.side_by_side > 1:
        text = (
            f"{comparison.side_by_side} runs at a time shared the machine: seconds are longer than alone, and not"
            " equally so for every method."
        )
        yield Flag("side-by-side", text)


_CHECKS: Sequence[Callable[[Comparison, Findings], Iterator[Flag]]] = (
    _failed,
    _few_seeds,
    _uninformative,
    _floors,
    _local_on_iid,
    _same_model,
    _no_validation,
    _screened,
    _courses,
    _replies,
    _unused,
    _best_on_test,
    _short,
    _budget,
    _timings,
)


def across(comparisons: Sequence[tuple[Comparison, Findings]]) -> tuple[Flag, ...]:
    """Compare several comparisons: apply :func:`skew_flags` to those that differ in their partition alone.

    Args:
        comparisons: each with their findings. Skew is that of labels; where there are none, of targets or features.
    """
    alike: dict[str, list[tuple[float, Findings]]] = {}
    for comparison, findings in comparisons:
        skew = next((value for name in SKEWS if (value := comparison.facts.skew.get(name)) is not None), None)
        if skew is not None:
            shared = {
                key: value
                for key, value in comparison.config.items()
                if key != "partition" and key not in NON_RESULT_SETTINGS
            }
            base = _base(comparison.baseline, findings.lines)
            alike.setdefault(repr((sorted(shared.items()), base and base.method)), []).append((skew, findings))
    return tuple(flag for group in alike.values() for flag in skew_flags(group))


def skew_flags(by_skew: Sequence[tuple[float, Findings]]) -> tuple[Flag, ...]:
    """Flag a shared model of FedAvg that improves with more skew, which is implausible.

    The baseline replaces FedAvg where FedAvg is not compared.

    Args:
        by_skew: (skew number, findings) of comparisons that differ only in partition; a larger number is more skew.
    Returns:
        a flag for each neighbouring pair in which the mean rises by more than 0.01 (1 % of an error) and by more than
        two standard errors.
    """
    result = []
    ordered = sorted(by_skew, key=lambda pair: pair[0])
    for (low, before), (high, after) in itertools.pairwise(ordered):
        if high == low or not before.headline or before.headline[0] not in after.headline:
            continue
        score = before.headline[0]
        one, other = (_base(f.baseline, f.lines) for f in (before, after))
        a, b = (None if line is None else line.scores.get(score) for line in (one, other))
        if one is None or a is None or b is None:
            continue
        rise = (b.mean - a.mean) if after.larger else (a.mean - b.mean)
        if rise > max(0.01 if after.larger else 0.01 * abs(a.mean), _error(a, b)):
            text = (
                f"{one.label} gets better with more skew: {a.mean:.3f} {score_label(score)} at {low:.3g}, {b.mean:.3f}"
                " at"
                f" {high:.3g}."
            )
            result.append(
                Flag(
                    "implausible", f"{text} Look at the sizes of the clients and at the test data before believing it."
                )
            )
    return tuple(result)


def _error(*spreads: Spread) -> float:
    """Return two standard errors of a mean, or of a difference of means; 0 for one seed."""
    return 2 * math.sqrt(math.fsum((spread.std or 0.0) ** 2 / spread.n for spread in spreads))


def _curve(result: Result, findings: Findings, *, personal: bool) -> list[Point]:
    shown = points(result, personal=personal, regression=not findings.larger)
    return shown or points(result, regression=not findings.larger)


def _runs(comparison: Comparison, line: Line) -> int:
    return len(comparison.runs(line.label))


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _some(items: Sequence[str], most: int = 4) -> str:
    """List a few items, and count the rest."""
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
