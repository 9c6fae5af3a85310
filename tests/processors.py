"""Run the laws, the golden runs and the parity of executors under each instruction set: ``make test-processors``.

Models that were trained with other instructions differ in the last bits, so a test that depends on one rounding passes
on the processor of its author only. An instruction set that this processor lacks is skipped, and the reason printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

SETS = (("DEFAULT", "SSE41"), ("AVX2", "AVX2"), ("AVX512", "AVX512_CORE"))
"""Capabilities of PyTorch, each with oneDNN's limit; a processor that has one has those before it."""
TESTS = ("tests/laws", "tests/golden", "tests/backends/test_parity.py")
ASK = "import torch; print(torch.backends.cpu.get_cpu_capability())"


def capability(environment: dict[str, str]) -> str:
    """Ask a fresh process which instructions PyTorch uses there."""
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def lacking(wanted: str, best: str) -> str | None:
    """Say why an instruction set cannot be tested here; None if it can."""
    known = [name for name, _ in SETS]
    if best not in known:
        return f"this processor's instruction set is {best}, which is none of {', '.join(known)}"
    return f"this processor has no {wanted}, only {best}" if known.index(wanted) > known.index(best) else None


def limited(name: str, onednn: str) -> dict[str, str]:
    """Return this process's environment with PyTorch and oneDNN limited to an instruction set."""
    return os.environ | {"ATEN_CPU_CAPABILITY": name.lower(), "ONEDNN_MAX_CPU_ISA": onednn}


def main(arguments: Sequence[str]) -> int:
    """Test under each instruction set; arguments go to pytest. Return the number of sets that failed."""
    plain = {k: v for k, v in os.environ.items() if k not in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")}
    best, outcomes = capability(plain), []
    for name, onednn in SETS:
        reason = lacking(name, best)
        if reason is not None:
            outcomes.append((name, f"skipped: {reason}"))
            continue
        environment, start = limited(name, onednn), time.monotonic()
        assert capability(environment) == name, f"PyTorch does not keep to {name}"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *(arguments or ())]
        code = subprocess.run(
            [*command, "-m", "not full and not slow", *TESTS], env=environment, check=False
        ).returncode
        outcomes.append((name, f"{'failed' if code else 'passed'} in {time.monotonic() - start:.0f} s"))
    for name, outcome in outcomes:
        print(f"{name:8} {outcome}")
    return sum(outcome.startswith("failed") for _, outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
