"""Describe a run of a comparison, before and after it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

Id: TypeAlias = tuple[str, int]
MANY = 300  # characters of a foreign message


@dataclass(frozen=True)
class Job:
    """Describes one run, or a run up to a pause.

    Attributes:
        label, seed: whose.
        config: every key, flat.
        folder, key: its place, and what it is found by in the cache; None for a run that is not cached.
        data, code: fingerprint of the federation and version of the code that the comparison was asked with; its runs
            have the same.
        until: rounds after which it pauses, None for the whole run.
    """

    label: str
    seed: int
    config: Mapping[str, Any] = field(repr=False)
    folder: Path
    key: str | None
    data: str = field(repr=False)
    code: str = field(repr=False)
    until: int | None = None

    @property
    def id(self) -> Id:
        """Return the key of results."""
        return self.label, self.seed


@dataclass(frozen=True)
class Outcome:
    """Records how a job ended; ``why`` for one that failed."""

    state: Literal["finished", "paused", "failed", "stopped"]
    why: str = ""


def reason(error: Exception) -> str:
    """Describe in one line an error that is not one of ours."""
    text = " ".join(str(error).split())[:MANY]
    return f"{type(error).__name__}{f': {text}' if text else ''} (see the traceback in the log of the comparison)"


Notify: TypeAlias = Callable[[Job, Mapping[str, Any]], None]
"""Receives what happens in a run: {"event": "started" | "round" | "waiting" | "aside" | "again" | "finished" |
"paused" | "stopped" | "failed", ...}.
"""
