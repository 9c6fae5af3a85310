"""A finished, or interrupted, run as a value."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from fedstrata.common.errors import StateError
from fedstrata.core.params import Params
from fedstrata.runs.version import check_version

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation

Scores: TypeAlias = Mapping[str, float | None]


@dataclass(frozen=True)
class Result:
    """What a run trained and measured, as plain data.

    Attributes:
        summary: what summary.json holds.
        rounds: what rounds.jsonl holds, a mapping a round.
        folder: the run folder, or None for a run that keeps nothing.
        clients: the last evaluation of single clients, by id: accuracy, personal, ...
        params: the final model, or None for a result that was read from a folder.
        federation: that it ran on, or None likewise.
        notes: what a user must know.
    """

    summary: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]] = field(repr=False)
    folder: Path | None = None
    clients: Mapping[int, Scores] = field(default_factory=dict, repr=False)
    params: Params | None = field(default=None, repr=False, compare=False)
    notes: tuple[str, ...] = ()
    federation: Federation | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read a run from its folder.

        An unfinished run has rounds, too; its summary holds what the last round knows.

        Raises:
            StateError: no run there, or files that are damaged.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise StateError(f"there is no run folder {str(folder)!r}; `fedstrata run` prints the folder at its end.")
        check_version(folder)
        rounds, notes = _rows(folder / "rounds.jsonl")
        summary = _object(folder / "summary.json")
        if summary is None:
            if not rounds:
                raise StateError(f"{str(folder)!r} is no run folder: it has neither summary.json nor rounds.jsonl.")
            summary = {name: told for name, told in manifest(folder).items() if name in ("method", "seed")} | _so_far(
                rounds
            )
            notes = (
                *notes,
                f"the run is not finished; it has {len(rounds)} rounds. Go on with: fedstrata resume {folder}",
            )
        return cls(summary, rounds, folder, _clients(folder / "clients.csv"), notes=notes)

    @property
    def name(self) -> str:
        """What tables and legends call this run."""
        return self.folder.name if self.folder else str(self.summary.get("method", "run"))


def manifest(folder: Path) -> dict[str, Any]:
    """What manifest.json of a run folder holds; nothing where there is none."""
    return _object(folder / "manifest.json") or {}


def _object(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StateError(f"{path} is damaged: {error}.") from error
    if not isinstance(value, dict):
        raise StateError(f"{path} is damaged: it holds no JSON object.")
    return value


def _rows(path: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Rounds, and a note where the last line was torn off by a kill."""
    if not path.is_file():
        return [], ()
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows: list[dict[str, Any]] = []
    for place, line in enumerate(line for line in lines if line):
        try:
            row = json.loads(line)
        except ValueError as error:
            if place == len(lines) - 1:  # no newline after it
                return rows, (f"{path.name}: the last line is half written and was left out.",)
            raise StateError(f"{path} is damaged in line {place + 1}: {error}.") from error
        if not isinstance(row, dict):
            raise StateError(
                f"{path} is damaged in line {place + 1}: it is not a JSON object. `fedstrata resume {path.parent}` says"
                " what is left."
            )
        rows.append(row)
    return rows, ()


def _so_far(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    scores = [row["accuracy"] for row in rounds if row.get("accuracy") is not None]
    total = {key: sum(row.get(key) or 0 for row in rounds) for key in ("bytes_up", "bytes_down", "flops", "seconds")}
    return {
        "rounds": len(rounds),
        "accuracy": {"final": scores[-1] if scores else None, "best": max(scores, default=None)},
        **total,
    }


def _clients(path: Path) -> dict[int, Scores]:
    """Scores of clients from clients.csv; counts are the federation's own and are not read back."""
    if not path.is_file():
        return {}
    found: dict[int, Scores] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                scores = {
                    name.removeprefix(SCORE): _float(text)
                    for name, text in row.items()
                    if name and name.startswith(SCORE) and text
                }
                if scores:
                    found[int(row["client"])] = scores
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise StateError(f"{path} is damaged: {error!r}. Delete it; a resume of the run writes it again.") from error
    return found


SCORE = "score_"
"""Prefix of the columns of clients.csv that hold scores of the last evaluation."""


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
