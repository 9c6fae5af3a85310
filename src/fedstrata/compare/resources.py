"""Decide how many runs share this machine, and with how many workers each."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fedstrata.common.units import size
from fedstrata.config.config import Config

GROWTH = 2  # times the parent's memory, with the same data: assumed for a run until it reports its peak
RESERVE = 1.1  # what must be free for another run, in units of what it needs
_CGROUP = Path("/sys/fs/cgroup")


@dataclass
class Resources:
    """Tracks cores and memory, and what runs have needed so far.

    Whole runs side by side serve the cores better than clients side by side, as nothing waits at the end of a round;
    workers are only given out where there are fewer runs than cores. An executor or a number of workers that is
    configured is kept.

    Attributes:
        config: of all runs.
        requested: runs side by side, or None for as many as the cores serve.
        cores: usable by this process.
        needed: largest peak (bytes) that a run has reported; 0 before the first.
        limit: what memory allowed at the last look, None where it was no limit.
    """

    config: Config
    requested: int | None = None
    cores: int = field(
        default_factory=lambda: (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
    )
    needed: int = 0
    limit: int | None = None
    note: str = ""

    @property
    def slots(self) -> int:
        """Return the number of runs side by side that the cores allow."""
        if self.requested is not None:
            return self.requested
        each = 1 if self.config.workers == "auto" or self.config.executor == "loop" else self.config.workers
        return max(1, self.cores // (each * self.config.local.threads))

    def executor_for(self, left: int) -> tuple[str, int]:
        """Return executor and workers of a run that starts while ``left`` runs, including itself, are not finished."""
        executor, given = self.config.executor, self.config.workers
        together = self.slots if self._timed else min(self.slots, max(1, left))
        workers = max(1, self.cores // (together * self.config.local.threads)) if given == "auto" else given
        if executor == "auto" and (workers == 1 or self._timed):
            return "loop", 1
        return executor, 1 if executor == "loop" else workers

    def together(self, left: int) -> int:
        """Return how many runs share the machine while ``left`` are not finished.

        Memory counts as far as it is known by then.
        """
        return min(self.slots, left, self.limit or left)

    @property
    def _timed(self) -> bool:
        """Return whether seconds decide the result: all runs must then have the same share of the machine."""
        return self.config.stop.seconds is not None

    def fits(self, peaks: list[int]) -> bool:
        """Return whether memory allows one more run beside those with these peaks; the first always starts."""
        if not peaks:
            return True
        need = self.needed or GROWTH * psutil.Process().memory_info().rss
        grow = sum(max(0, need - peak) for peak in peaks)
        free = available()
        if free - grow >= RESERVE * need:
            return True
        if self.limit is None or len(peaks) > self.limit:
            self.limit = len(peaks)
            runs = "1 run" if self.limit == 1 else f"{self.limit} runs"
            self.note = f"memory allows {runs} at a time: one takes up to {size(need)}, and {size(free)} are free"
        return False


def available() -> int:
    """Return the free bytes: of the machine, and of the control group where there is one."""
    free = int(psutil.virtual_memory().available)
    try:
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return min(free, int(most) - int(used)) if most.isdecimal() else free
    except (OSError, ValueError):
        return free
