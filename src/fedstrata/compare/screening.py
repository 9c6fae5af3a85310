"""Screen methods by successive halving, and audit how often that drops the wrong ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedstrata.analysis.comparison import Screening
from fedstrata.analysis.statistics import share_interval
from fedstrata.common.errors import ConfigError
from fedstrata.common.random_streams import stream
from fedstrata.compare.execution import RunExecutor, RunSet
from fedstrata.compare.request import ComparisonRequest
from fedstrata.runs.result import Result

SHARES = (4, 2)  # rungs: a quarter and a half of the rounds


def rungs(request: ComparisonRequest) -> tuple[int, ...]:
    """Return the rounds at which methods are dropped.

    Raises:
        ConfigError: without validation data or classes to choose by, or with too few rounds or evaluations.
    """
    config = request.config
    if not config.validation and request.python_inputs.federation is None:
        raise ConfigError(
            "screening drops methods by clients' validation data, and validation is 0; set validation=0.2 or leave"
            " --screen out."
        )
    result = tuple(sorted({config.rounds // part for part in SHARES} - {0}))
    if config.rounds < max(SHARES):
        raise ConfigError(
            f"screening looks at a quarter and a half of {config.rounds} rounds; use rounds=4 or more, or leave"
            " --screen out."
        )
    if config.eval.every > result[0]:
        raise ConfigError(
            f"screening looks at round {result[0]}, and eval.every is {config.eval.every}; use eval.every={result[0]}"
            " or"
            " less."
        )
    return result


def run_screening(executor: RunExecutor) -> Screening:
    """Drop methods rung by rung, then train the survivors, and a random part of the dropped, to the end.

    A rung is a run that pauses: survivors go on from where they are and lose nothing.
    """
    run_set = executor.run_set
    request = run_set.request
    assert request.screen is not None, "screening was asked for"
    if not run_set.facts.has_accuracy or not run_set.facts.validation:
        raise ConfigError("screening needs classes and clients with validation data; leave --screen out.")
    remaining = [competitor.entry.label for competitor in request.competitors]
    kept: dict[int, list[str]] = {}
    dropped: dict[str, int] = {}
    audited: list[str] = []
    for rung in rungs(request):
        executor.make([replace(job, until=rung) for job in run_set.of(remaining)])
        remaining = [label for label in remaining if not _failed(run_set, label)]
        kept[rung] = better_half({label: score_at(run_set, label, rung) for label in remaining}, request.baseline)
        dropped_now = [label for label in remaining if label not in kept[rung]]
        dropped |= dict.fromkeys(dropped_now, rung)
        audited += audit(dropped_now, request.screen, request.seeds[0], rung)
        for job in run_set.of(dropped_now):
            executor.board.mark(job.id, "dropped")
        if dropped_now:
            executor.board.say(f"after round {rung}: dropped {', '.join(dropped_now)}")
        remaining = kept[rung]
    executor.make(run_set.of([*remaining, *audited]))
    final = {label: score for label in (*remaining, *audited) if (score := best_score(run_set, label)) is not None}
    wrongly = [
        label
        for label in audited
        if label in final and _wrongly_dropped(label, kept[dropped[label]], final, request.baseline)
    ]
    return audit_result(tuple(kept), dropped, [label for label in audited if label in final], wrongly)


def _failed(run_set: RunSet, label: str) -> bool:
    return any(failed == label for failed, _ in run_set.failures)


def better_half(scores: Mapping[str, float], baseline: str) -> list[str]:
    """Return the better half by score, rounded up, in the order given; ties with its last and the baseline stay.

    >>> better_half({"a": 0.1, "b": 0.3, "c": 0.3, "d": 0.2}, baseline="a")
    ['a', 'b', 'c']
    """
    if not scores:
        return []
    bar = sorted(scores.values(), reverse=True)[math.ceil(len(scores) / 2) - 1]
    return [label for label, score in scores.items() if score >= bar or label == baseline]


def audit(dropped_now: Sequence[str], share: float, seed: int, rung: int) -> list[str]:
    """Draw a seeded random part of the dropped: the share, rounded up, so at least one where there is any."""
    count = math.ceil(share * len(dropped_now) - 1e-9)
    return [dropped_now[i] for i in sorted(stream(seed, "audit", rung).permutation(len(dropped_now))[:count].tolist())]


def score_at(run_set: RunSet, label: str, rung: int) -> float:
    """Return the mean over seeds of the last validation score up to a round.

    A run whose budget ended it before counts with its last one.
    """
    scores = [
        (validation_scores(Result.read(job.folder).rounds[:rung]) or [-math.inf])[-1] for job in run_set.of([label])
    ]
    return sum(scores) / len(scores)


def validation_scores(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """List the scores on clients' validation data in the evaluated rounds; larger is better.

    A score that was not finite is left out.
    """
    return [row["validation"] for row in rows if row.get("validation") is not None]


def best_score(run_set: RunSet, label: str) -> float | None:
    """Return the mean over seeds of the best validation score of the whole run; None where a run is missing.

    It is the score that chooses a run's round, so choices are judged by what they were made by, and the test is not
    looked at.
    """
    ids = [job.id for job in run_set.of([label])]
    if any(id_ not in run_set.done for id_ in ids):
        return None
    return sum(
        max(validation_scores(Result.read(run_set.jobs[id_].folder).rounds), default=-math.inf) for id_ in ids
    ) / len(ids)


def _wrongly_dropped(label: str, kept: Sequence[str], final: Mapping[str, float], baseline: str) -> bool:
    """Return whether a dropped method ends above the lowest of those kept instead, as far as these were trained on.

    The baseline is always kept, so it is no measure here unless it is the only one.
    """
    known = [final[other] for other in kept if other in final and other != baseline] or [
        final[other] for other in kept if other in final
    ]
    return bool(known) and final[label] > min(known)


def audit_result(
    at: tuple[int, ...], dropped: Mapping[str, int], audited: Sequence[str], wrongly: Sequence[str]
) -> Screening:
    """Return the share of wrongly dropped methods with its exact 95 % interval (Clopper and Pearson 1934)."""
    if not audited:
        return Screening(at, dict(dropped))
    low, high = share_interval(len(wrongly), len(audited))
    return Screening(at, dict(dropped), tuple(audited), tuple(wrongly), len(wrongly) / len(audited), low, high)
