"""Names the kind of processor that computes: the order of float sums, and so the last bits, depend on it."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch


@functools.cache
def processor() -> dict[str, str]:
    """Return the processor's model name and the instruction set that torch uses on it."""
    return {
        "model": _model(Path("/proc/cpuinfo")) or platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _model(info: Path) -> str:
    """Return the first model name in Linux's list of processors, or nothing."""
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")
