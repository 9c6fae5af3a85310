"""Several methods on the same federation, as a value: what was compared, on what, and every run's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from fedstrata.data.statistics.facts import Facts
from fedstrata.runs.result import Result

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedstrata.analysis.records import Findings
    from fedstrata.report.figures import Picture


BudgetUnit: TypeAlias = Literal["bytes", "flops", "seconds", "accuracy"]
"""What a budget counts."""


@dataclass(frozen=True)
class Entry:
    """One competitor.

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
    """Where every run ends, if before its last round: the first round that reaches the amount.

    Attributes:
        kind: bytes (payload up and down), flops (clients' training), seconds (committed rounds), or accuracy (reached
            on validation data where there are some, otherwise on test data).
        amount: in that unit.
    """

    kind: BudgetUnit
    amount: float


@dataclass(frozen=True)
class Screening:
    """What successive halving did before the full runs.

    Attributes:
        rungs: rounds at which methods were dropped, ascending.
        dropped: label -> the rung at which it was dropped.
        audited: dropped labels that were trained to the end all the same, to see whether dropping them was right.
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
    """What ``fedstrata compare`` came to.

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
        """The finished runs of one competitor, by seed."""
        return [self.results[label, seed] for seed in self.seeds if (label, seed) in self.results]

    def findings(self, target: float | None = None) -> Findings:
        """Means, paired differences, fronts, flags and the answer; see :func:`fedstrata.analysis.findings.findings`."""
        from fedstrata.analysis.findings import findings  # it knows comparisons  # noqa: PLC0415

        return findings(self, target)

    @overload
    def plot(self) -> Picture: ...
    @overload
    def plot(self, path: str | Path) -> Path: ...
    def plot(self, path: str | Path | None = None) -> Path | Picture:
        """Draw the headline scores against rounds, a line a method: mean over seeds, with a band of one standard
        deviation.

        Args:
            path: of a PNG, SVG or PDF file; none gives a matplotlib figure, which a notebook shows.
        """
        from fedstrata.report.figures import comparison_picture  # matplotlib is only loaded by those who draw  # noqa: PLC0415

        picture = comparison_picture(self, self.findings())
        return picture if path is None else picture.write(Path(path))

    def to_pandas(self, what: str = "runs") -> DataFrame:
        """A table as a DataFrame; the columns are those of :mod:`fedstrata.report.export`.

        Args:
            what: "runs" (a row a finished run), "rounds", "clients", "findings" (a row a method) or "differences".
        Raises:
            ConfigError: another word.
            FedstrataError: pandas is not installed.
        """
        from fedstrata.analysis import frames  # frames know comparisons  # noqa: PLC0415

        choices: dict[str, Callable[[], Sequence[Mapping[str, Any]]]] = {
            "runs": lambda: frames.runs(self),
            "rounds": lambda: frames.rounds(self),
            "clients": lambda: frames.clients(self),
            "findings": lambda: frames.findings_rows(self.findings()),
            "differences": lambda: frames.difference_rows(self.findings()),
        }
        return frames.frame(frames.picked(what, choices)())

    def __str__(self) -> str:
        from fedstrata.report.terminal import comparison_text  # tables know comparisons  # noqa: PLC0415

        return comparison_text(self.findings())

    def _repr_html_(self) -> str:
        from fedstrata.report.html import comparison_html  # only notebooks ask  # noqa: PLC0415

        return comparison_html(self, self.findings())
