"""Conclude a comparison: one sentence for each headline score, with the numbers and their certainty."""

from __future__ import annotations

from collections.abc import Sequence

from fedstrata.analysis.records import Difference, Findings, Line
from fedstrata.analysis.scores import score_label, threshold_text
from fedstrata.common.units import number


def answer(findings: Findings) -> str:
    """Write one sentence for each headline that some method has a score for."""
    sentences: list[str] = []
    for score in findings.headline:
        sentence = _sentence(findings, score, repeated=bool(sentences))
        sentences += [sentence] if sentence else []
    return " ".join(sentences) or "No run has finished with a score, so there is no conclusion yet."


def _sentence(findings: Findings, score: str, *, repeated: bool) -> str:
    ranked = sorted(
        (line for line in findings.lines if score in line.scores),
        key=lambda line: line.scores[score].mean,
        reverse=findings.larger,
    )
    if not ranked:
        return ""
    best = ranked[0]
    seeds = max(line.scores[score].n for line in ranked)
    few = seeds < 3 and len(ranked) > 1
    opening = _opening(seeds, few=few, repeated=repeated)
    parts = [opening + (_undecided(findings, score, ranked) if few else _claim(findings, score, ranked))]
    if best.shared_unused and not score.startswith("personal"):
        parts.append(f"but no client uses that model: layers of {best.label} are private to the clients")
    if not best.informative and findings.chance is not None and not score.startswith("personal"):
        parts.append(
            f"not informative: the baseline is under {threshold_text(findings.chance)} ({findings.chance:.2f})"
        )
    return "; ".join(parts) + "."


def _claim(findings: Findings, score: str, ranked: Sequence[Line]) -> str:
    best, base = ranked[0], findings.baseline
    best_text = f"{number(best.scores[score].mean, 3)} {score_label(score)}"
    others = [line for line in ranked if line.label != base]
    if not others or len(findings.lines) == 1:
        return f"{best.label} has {best_text}; there is no other result to compare it with"
    if all(score not in line.differences for line in others):
        return (
            f"{best.label} has the best mean, {best_text}, but {base}, the baseline, has no result on a common seed, so"
            " no"
            " difference can be computed"
        )
    if best.label == base:
        return _defended(best, score, others)
    return _challenger(findings, score, best, others)


def _defended(best: Line, score: str, others: Sequence[Line]) -> str:
    """Write the sentence for a best mean that is the baseline's."""
    base, best_text = best.label, f"{number(best.scores[score].mean, 3)} {score_label(score)}"
    if any(
        _verdict(line, score) == "better" for line in others
    ):  # only where the means are over other seeds than the differences
        lead = f"{base} (the baseline) has the best mean, {best_text}, but not on the same seeds as every other method"
        return f"{lead}; on seeds in common, {_others(others, score, base)}"
    equal = [line.label for line in others if line.scores[score].values == best.scores[score].values]
    left = [line for line in others if line.label not in equal]
    if not equal:
        return f"{base} (the baseline) has the best {_model_name(score)}: {best_text}; " + _others(others, score, base)
    lead = f"{base} (the baseline) and {_listed(equal)} have the same score in every seed, {best_text}"
    return f"{lead}; {_others(left, score, base)}" if left else lead


def _challenger(findings: Findings, score: str, best: Line, others: Sequence[Line]) -> str:
    """Write the sentence for a best mean that belongs to another method than the baseline."""
    base, it = findings.baseline, best.differences.get(score)
    best_text = f"{number(best.scores[score].mean, 3)} {score_label(score)}"
    rest = _others([line for line in others if line is not best], score, base, quiet=True)
    if it is None or it.verdict == "no conclusion":
        why = "no seed in common" if it is None else it.note or f"only {_seeds(it.n)} in common"
        distance = f", {_difference(it)} {base}" if it is not None else ""
        lead = f"{best.label} has the best mean, {best_text}{distance}, but nothing can be concluded about it ({why})"
        return "; ".join(filter(None, [lead, rest]))
    if it.verdict == "better":
        gap = f"{_difference(it)} {base} ({_p(it, findings, score)})"
        lead = f"{best.label} has the best {_model_name(score)}: {best_text}, {gap}"
        return "; ".join(filter(None, [lead, _rival(best, score, base, larger=findings.larger), rest]))
    whom = (
        "shown to differ from"
        if all(_verdict(line, score) == "not shown" for line in others)
        else "shown to be better than"
    )
    if any(_verdict(line, score) == "better" for line in others):
        gap = f"is not shown to be better than {base}: {_difference(it)} it"
        lead = f"{best.label} has the best mean, {best_text}, but {gap}"
        return f"{lead} ({_p(it, findings, score)}); {rest}"
    lead = f"no method is {whom} {base} in its {_model_name(score)}: the best mean is {best.label}'s, {best_text}"
    return "; ".join(filter(None, [f"{lead}, {_difference(it)} {base} ({_p(it, findings, score)})", rest]))


def _undecided(findings: Findings, score: str, ranked: Sequence[Line]) -> str:
    best, base = ranked[0], findings.baseline
    other = ranked[1] if best.label == base else best
    it = other.differences.get(score)
    lead = f"the best mean {score_label(score)} is {best.label}'s, "
    best_text = number(best.scores[score].mean, 3)
    if it is None:
        return lead + best_text
    where = (
        f" on the {_seeds(it.n)} in common"
        if it.n < max(line.scores[score].n for line in ranked if line.label in (base, other.label))
        else ""
    )
    return (
        lead
        + best_text
        + (
            f"; {other.label}'s is {_difference(it)} it{where}"
            if best.label == base
            else f", {_difference(it)} {base}{where}"
        )
    )


def _rival(best: Line, score: str, base: str, *, larger: bool) -> str:
    """Give the margin over the best competitor, where that is not the baseline."""
    rival, it = best.margins.get(score, ("", None))
    if it is None or rival == base:
        return ""
    value = it.mean if larger else -it.mean
    shown = {"better": "is shown", "no conclusion": f"is left open ({it.note or _seeds(it.n) + ' in common'})"}.get(
        it.verdict, "is not shown"
    )
    return f"its margin over the next best, {rival}, {number(value, 3)}{_interval(it, turn=not larger)}, {shown}"


def _others(others: Sequence[Line], score: str, base: str, *, quiet: bool = False) -> str:
    """Name the others that are shown to differ; ``quiet``: return "" where none is."""
    parts = []
    for verdict in ("better", "worse"):
        named = [_label_text(line, score) for line in others if _verdict(line, score) == verdict]
        if named:
            parts.append(
                f"{_labels_text(named, len(others), quiet=quiet)} {'is' if len(named) == 1 else 'are'} shown to be"
                f" {verdict}"
                f" than {base}"
            )
    if parts or quiet:
        return "; ".join(parts)
    return f"no other method is shown to differ from {base}"


def _label_text(line: Line, score: str) -> str:
    """Return a label, with a warning where the score is that of an unused shared model."""
    return (
        f"{line.label} (whose shared model no client uses)"
        if line.shared_unused and not score.startswith("personal")
        else line.label
    )


def _labels_text(labels: Sequence[str], of: int, *, quiet: bool) -> str:
    return f"all {of} other methods" if len(labels) == of > 2 and not quiet else _listed(labels)


def _verdict(line: Line, score: str) -> str:
    it = line.differences.get(score)
    return it.verdict if it is not None else "no conclusion"


def _difference(it: Difference) -> str:
    """Write size, interval and direction: "0.021 [0.008, 0.034] above"."""
    if it.mean == 0:
        return "0.000 from"
    return f"{number(abs(it.mean), 3)}{_interval(it, turn=it.mean < 0)} {'above' if it.mean > 0 else 'below'}"


def _interval(it: Difference, *, turn: bool = False) -> str:
    if it.low is None or it.high is None:
        return ""
    low, high = (-it.high, -it.low) if turn else (it.low, it.high)
    return f" [{number(low, 3)}, {number(high, 3)}]"


def _p(it: Difference, findings: Findings, score: str) -> str:
    if it.corrected is None:
        return it.note
    methods = sum(line.differences[score].p is not None for line in findings.lines if score in line.differences)
    corrected = f" after correction for {methods} methods" if methods > 1 else ""
    return f"p {p_text(it.corrected)}{corrected}" + (f", {_seeds(it.n)} in common" if it.n != findings.seeds else "")


def p_text(p: float) -> str:
    """Write a p-value with its significant digits; one under 0.05 does not read as 0.05."""
    if p < 0.001:
        return "< 0.001"
    text = f"{p:.1g}" if p < 0.01 else f"{p:.2f}"
    return f"{p:.2g}" if text == "0.05" and p < 0.0495 else "just under 0.05" if text == "0.05" and p < 0.05 else text


def _model_name(score: str) -> str:
    return "personal models" if score.startswith("personal") else "shared model"


def _opening(seeds: int, *, few: bool, repeated: bool) -> str:
    """Open the sentence with its number of seeds; shorter the second time."""
    if few:
        return (
            "Nor about personal models: "
            if repeated
            else f"With {_seeds(seeds)} no conclusion about a difference can be drawn: "
        )
    return "On the same seeds, " if repeated else f"On {_seeds(seeds)}, "


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
