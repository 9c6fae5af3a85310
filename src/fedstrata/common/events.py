"""What a run tells while it runs. Observers read events; they never write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Started:
    """A run begins, or goes on.

    Attributes:
        folder: the run folder, or None for a run that keeps nothing.
        method, data, model, partition: as configured.
        clients, cohort, rounds, parameters: counts.
        executor, workers: who trains; "auto" until chosen.
        first: the round it begins with.
        notes: what a user must know.
    """

    folder: Path | None
    method: str
    data: str
    model: str
    partition: str
    clients: int
    cohort: int
    rounds: int
    parameters: int
    executor: str
    workers: int
    first: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExecutorChosen:
    """``executor=auto`` has measured and chosen.

    Attributes:
        executor, workers: the choice.
        measured: local training samples a second, by candidate, best of its rounds.
    """

    executor: str
    workers: int
    measured: Mapping[str, float]


@dataclass(frozen=True)
class RoundDone:
    """A round is committed. ``row`` is what rounds.jsonl holds.

    Keys: round, cohort (ids), replies (accepted), refused ([client, code, message]), loss, bytes_up, bytes_down,
        framing_up, framing_down, flops,
    seconds (training), activation_cache (how often activations of frozen layers were cached, or why not; null where
        there is nothing to report), eval_seconds, weights_used, and after an evaluation: accuracy, validation,
        personal, personal_std, metrics, ...; null where not evaluated.
    """

    row: Mapping[str, Any]


@dataclass(frozen=True)
class Finished:
    """The run is over; ``summary`` is what summary.json holds."""

    summary: Mapping[str, Any]
    folder: Path | None = None
    notes: tuple[str, ...] = field(default=())


Event: TypeAlias = Started | ExecutorChosen | RoundDone | Finished
Observer: TypeAlias = Callable[[Event], None]
