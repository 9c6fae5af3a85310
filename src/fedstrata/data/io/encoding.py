"""What each column of a table is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["auto", "classification", "regression"]
Missing = Literal["refuse", "impute"]


@dataclass(frozen=True)
class Encoding:
    """The role of each column.

    Attributes:
        label: the column to predict.
        client: the column that names the holder of a row, or None.
        kind: auto is classification for words and for at most 100 different whole numbers, regression otherwise.
        missing: refuse, or impute: numbers by the training mean, words as a separate level.
        categorical: columns of numbers that are names.
        drop: columns that are not used.
        target: regression targets in standard deviations of the training targets, or raw.
    """

    label: str
    client: str | None = None
    kind: Kind = "auto"
    missing: Missing = "refuse"
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    target: Literal["standard", "raw"] = "standard"
