"""Format numbers for readers."""

from __future__ import annotations

import math

HUGE = 1e9  # from here on, digits before the point are no longer counted by anybody


def number(value: float | None, digits: int = 4) -> str:
    """A share or metric; a dash where there is none. An error that has run away is written as 7.267e+36."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.{digits}f}" if abs(value) < HUGE else f"{value:.3e}"


def size(count: float | None) -> str:
    """Bytes in decimal units: 1.2 MB is 1,200,000 bytes."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def work(count: float | None) -> str:
    """Floating-point operations: 3.4 GFLOP."""
    return _scaled(count, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def _scaled(count: float | None, units: tuple[str, ...]) -> str:
    if count is None or not math.isfinite(count):
        return "-"
    place = 0
    while abs(count) >= 999.5 and place < len(units) - 1:
        count, place = count / 1000, place + 1
    return f"{count:.0f} {units[0]}" if place == 0 else f"{count:.3g} {units[place]}"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
