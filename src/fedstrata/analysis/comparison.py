"""Hold several methods on the same federation as a value: what was compared, on what, and every run's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedstrata.data.statistics.facts import Facts
from fedstrata.runs.result import Result

BudgetUnit: TypeAlias = Literal["bytes", "flops", "seconds", "accuracy"]
"""What a budget counts."""


@dataclass(frozen=True)
class Entry:
    """Describes one competitor.

    Attributes:
        label: what tables call it; unique in a comparison.
        method: in call syntax.
        settings: its own settings by public key, over those of all: {"local.lr": 0.05}.
    """

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """Ends every run before its last round: at the first round that reaches the amount.

    Attributes:
        kind: bytes (payload up and down), flops (clients' training), seconds (committed rounds), or accuracy (reached
            on validation data where there are some, otherwise on test data).
        amount: in that unit.
    """

    kind: BudgetUnit
    amount: float


@dataclass(frozen=True)
class Screening:
    """Records what successive halving did before the full runs.

    Attributes:
        rungs: rounds at which methods were dropped, ascending.
        dropped: label -> the rung at which it was dropped.
        audited: dropped labels that were trained to the end anyway, to see whether dropping them was right.
        wrongly: of those, the ones that would have been among the methods kept.
        share: len(wrongly) / len(audited), None without an audit; low, high: its 95 % interval (Clopper and Pearson).
    """

    rungs: tuple[int, ...]
    dropped: Mapping[str, int]
    audited: tuple[str, ...] = ()
    wrongly: tuple[str, ...] = ()
    share: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Holds what ``fedstrata compare`` trained and measured, as plain data.

    Attributes:
        entries: competitors, in the order given.
        baseline: label that differences are taken to.
        seeds: of the runs.
        results: (label, seed) -> result; runs that failed or were dropped are missing.
        failures: (label, seed) -> why.
        config: the shared configuration, every key (the seed is that of no run).
        facts: the federation of the first seed.
        command: the command that does it again.
        machine: processor, cores, library versions; ``side_by_side``: how many runs shared it.
        budget, screening: None where there was none.
        folder: where it is kept, or None.
    """

    entries: tuple[Entry, ...]
    baseline: str
    seeds: tuple[int, ...]
    results: Mapping[tuple[str, int], Result] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    facts: Facts = field(repr=False)
    failures: Mapping[tuple[str, int], str] = field(default_factory=dict)
    command: str = ""
    machine: Mapping[str, str] = field(default_factory=dict, repr=False)
    side_by_side: int = 1
    budget: Budget | None = None
    screening: Screening | None = None
    folder: Path | None = None

    def runs(self, label: str) -> list[Result]:
        """Return the finished runs of one competitor, by seed."""
        return [self.results[label, seed] for seed in self.seeds if (label, seed) in self.results]
