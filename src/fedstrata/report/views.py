"""Results as users see them: the plain records, with tables, pictures and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from fedstrata.analysis import comparison, findings, frames
from fedstrata.analysis.records import Findings
from fedstrata.report.figures import Picture, comparison_picture, curve_picture
from fedstrata.report.html import comparison_html, result_html
from fedstrata.report.terminal import comparison_text
from fedstrata.runs import result

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Result(result.Result):
    """What a run trained and measured, with views; see :class:`fedstrata.runs.result.Result` for the fields."""

    @classmethod
    def of(cls, record: result.Result) -> Self:
        """Return the view of a plain record."""
        return cls(**{field.name: getattr(record, field.name) for field in fields(record)})

    @overload
    def plot(self) -> Picture: ...
    @overload
    def plot(self, path: str | Path) -> Path: ...
    def plot(self, path: str | Path | None = None) -> Path | Picture:
        """Draw accuracy and loss against rounds.

        Args:
            path: of a PNG, SVG or PDF file; none gives a matplotlib figure, which a notebook shows.
        """
        picture = curve_picture([self])
        return picture if path is None else picture.write(Path(path))

    def to_pandas(self, what: str = "rounds") -> DataFrame:
        """Return the rounds as a DataFrame, a row a round, nested metrics as columns with a dot; or the last scores.

        Args:
            what: "rounds" (``round`` counts from 0, as in rounds.jsonl) or "clients".
        Raises:
            ConfigError: another word.
            FedstrataError: pandas is not installed.
        """
        rows = frames.picked(what, {"rounds": frames.rounds_of, "clients": frames.clients_of})
        return frames.frame(rows(self))

    def _repr_html_(self) -> str:
        return result_html(self)


@dataclass(frozen=True)
class Comparison(comparison.Comparison):
    """A comparison with views; see :class:`fedstrata.analysis.comparison.Comparison` for the fields."""

    @classmethod
    def of(cls, record: comparison.Comparison) -> Self:
        """Return the view of a plain record; its results become views too."""
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        return cls(**(values | {"results": {key: Result.of(value) for key, value in record.results.items()}}))

    def findings(self, target: float | None = None) -> Findings:
        """Compute means, paired differences, fronts, flags and the answer.

        Args:
            target: as in :func:`fedstrata.analysis.findings.findings`.
        """
        return findings.findings(self, target)

    @overload
    def plot(self) -> Picture: ...
    @overload
    def plot(self, path: str | Path) -> Path: ...
    def plot(self, path: str | Path | None = None) -> Path | Picture:
        """Draw the headline scores against rounds, a line a method: mean over seeds, with a band of one deviation.

        Args:
            path: of a PNG, SVG or PDF file; none gives a matplotlib figure, which a notebook shows.
        """
        picture = comparison_picture(self, self.findings())
        return picture if path is None else picture.write(Path(path))

    def to_pandas(self, what: str = "runs") -> DataFrame:
        """Return a table as a DataFrame; the columns are those of :mod:`fedstrata.report.export`.

        Args:
            what: "runs" (a row a finished run), "rounds", "clients", "findings" (a row a method) or "differences".
        Raises:
            ConfigError: another word.
            FedstrataError: pandas is not installed.
        """
        choices: dict[str, Callable[[], Sequence[Mapping[str, Any]]]] = {
            "runs": lambda: frames.runs(self),
            "rounds": lambda: frames.rounds(self),
            "clients": lambda: frames.clients(self),
            "findings": lambda: frames.findings_rows(self.findings()),
            "differences": lambda: frames.difference_rows(self.findings()),
        }
        return frames.frame(frames.picked(what, choices)())

    def __str__(self) -> str:
        return comparison_text(self.findings())

    def _repr_html_(self) -> str:
        return comparison_html(self, self.findings())


__all__ = ["Comparison", "Result"]
