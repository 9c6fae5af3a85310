"""Ctrl-C: the first ends the run after the round at hand, with a checkpoint; the second ends it at once."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """A callable that says whether the user asked to stop; the signals' own handlers are put back at the end."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether to stop after this round."""
        return self.asked

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python sets handlers nowhere else
            self._before = {number: signal.signal(number, self._on) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print(
            "\nfedstrata: finishing this round and keeping a checkpoint; once more stops at once",
            file=sys.stderr,
            flush=True,
        )
