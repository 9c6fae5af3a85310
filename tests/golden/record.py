"""The golden runs, and how their fingerprints are written: `python tests/golden/record.py` from the repository's root.

Record anew only when numbers change on purpose, and say in CHANGELOG.md, in the same commit, what moved, by how much
and why. The bits of a float sum belong to a processor family and a torch version, so the file says where it was
written; elsewhere numbers are compared instead of bits.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch

from fedstrata.config.config import Config
from fedstrata.engine.assembly import assemble
from fedstrata.engine.rounds import Engine
from fedstrata.runs.summary import fingerprint

FILE = Path(__file__).with_name("fingerprints.json")
COMMON = {
    "clients": 10,
    "cohort": 4,
    "rounds": 4,
    "local.epochs": 4,
    "local.lr": 0.1,
    "executor": "loop",
    "eval.every": 4,
    "seed": 3,
}
RUNS = {
    "fedavg on an mlp": {"model": "mlp(hidden=[32])"},
    "fedprox + fedavgm on an mlp with dropout": {
        "method": "fedprox(mu=0.1) + fedavgm(beta=0.5)",
        "model": "mlp(hidden=[32], dropout=0.2)",
    },
    "scaffold on an mlp with batch norm": {
        "method": "scaffold",
        "model": "mlp(hidden=[32])",
        "norm": "batch",
        "local.lr": 0.05,
    },
    "fedrep with own tests": {"method": "fedrep", "model": "mlp(hidden=[32])", "test": "both"},
    "fedadam on logistic regression, adam on clients": {
        "method": "fedadam(lr=0.1)",
        "model": "logistic",
        "local.optimizer": "adam",
        "local.lr": 0.01,
    },
}


def machine() -> dict[str, str]:
    """What the bits of a float sum depend on."""
    processor = {"vendor_id": "", "cpu family": "", "model": ""}
    info = Path("/proc/cpuinfo")
    for line in info.read_text(encoding="utf-8").splitlines() if info.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() in processor and not processor[key.strip()]:
            processor[key.strip()] = value.strip()
    return {
        "machine": platform.machine(),
        "processor": " ".join(processor.values()).strip(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def measure(settings: dict) -> dict[str, object]:
    """One golden run: the model's hash and a few numbers of it."""
    engine = Engine(assemble(Config(**(COMMON | settings))), "loop", 1)
    rows = list(engine.rounds())
    engine.close()
    flat = engine.server.model.flat.double()
    return {
        "sha256": fingerprint(engine.server.model),
        "accuracy": rows[-1]["accuracy"],
        "personal": rows[-1]["personal"],
        "loss": rows[-1]["loss"],
        "norm": float(flat.norm()),
        "mean": float(flat.abs().mean()),
        "bytes_up": sum(row["bytes_up"] for row in rows),
        "flops": sum(row["flops"] for row in rows),
    }


def main() -> None:
    """Write all fingerprints."""
    torch.set_num_threads(1)
    found = {"machine": machine(), "runs": {name: measure(settings) for name, settings in RUNS.items()}}
    FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
