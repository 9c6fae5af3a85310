"""The cost of a federation follows the clients that take part, never those that are registered."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from fedstrata.common.errors import StateError
from fedstrata.config.config import Config
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import Eligible, assemble
from fedstrata.engine.rounds import Engine
from fedstrata.runs.run import run
from fedstrata.runs.summary import fingerprint
from helpers.tiers import tiered

MILLION = """
import json, resource, sys, time
from fedstrata.engine.assembly import assemble
from fedstrata.config.config import Config
from fedstrata.engine.rounds import Engine

settings = {"cohort": 10, "rounds": 8, "executor": "loop", "method": "scaffold"}
config = Config(data="digits", partition="overlap(size=20)", clients=int(sys.argv[1]), **settings)
engine = Engine(assemble(config), "loop", 1)
rows = list(engine.rounds())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak": peak, "states": engine.states.seen(), "replies": rows[-1]["replies"]}))
"""


def measured(clients: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", MILLION, str(clients)], capture_output=True, text=True, check=True, timeout=200
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_a_million_registered_clients_cost_what_a_hundred_do() -> None:
    few, many = measured(100), measured(1_000_000)
    assert many["replies"] == few["replies"] == 10
    assert many["states"] <= 80
    assert many["peak"] - few["peak"] < 250e6


def test_eligible_clients_are_counted_not_listed() -> None:
    eligible = Eligible(10, (0, 3, 9))
    assert list(eligible) == [1, 2, 4, 5, 6, 7, 8]
    assert (len(eligible), eligible[0], eligible[-1]) == (7, 1, 8)
    assert 3 not in eligible
    assert Eligible(10**9, ())[10**9 - 1] == 10**9 - 1
    with pytest.raises(IndexError):
        eligible[7]


def private() -> int:
    """Bytes that this process alone needs: what the allocator only keeps is given back first, and pages of mapped files
    belong to the system.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared


def tiny_images(clients: int) -> Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 4 * clients)
    x = (rng.normal(size=(4, 3, 32, 32))[y] + rng.normal(size=(len(y), 3, 32, 32))).astype(np.float32)
    return Federation.of(x, y, client=np.repeat(np.arange(clients), 4), test=(x[:8], y[:8]))


@pytest.mark.parametrize("method", tiered(["fedper", "scaffold + fedavgm", "ditto"], ["ditto"]))
def test_rows_in_memory_and_on_disk_give_the_same_model(tmp_path: Path, method: str) -> None:
    """T25."""
    found = []
    for rows in ("memory", "mapped"):
        config = Config(
            data="digits",
            clients=10,
            cohort=4,
            rounds=4,
            method=method,
            client_state=rows,
            model="mlp(hidden=8)",
            out=str(tmp_path),
            name=rows,
        )
        found.append(run(config).summary["model_sha256"])
    assert found[0] == found[1]


@pytest.mark.slow
def test_five_hundred_resnet_clients_with_personal_layers_keep_memory_flat(tmp_path: Path) -> None:
    """T10: 500 ResNet clients, each with a private body, 50 rounds; rows lie on disk."""
    seen: list[int] = []
    settings = {
        "eval.every": 50,
        "local.lr": 0.01,
        "clients": 500,
        "cohort": 10,
        "rounds": 50,
        "client_state": "mapped",
        "executor": "loop",
    }
    config = Config(method="lgfedavg", model="resnet8", norm="group", out=str(tmp_path), **settings)
    run(config, federation=tiny_images(500), observers=[lambda _: seen.append(private())])
    early, late = np.median(seen[5:15]), np.median(seen[-10:])
    written = 470 * 4 * 1_000_000  # at least so many clients were seen, each with a body of over a million floats
    assert late - early < 10e6, (
        f"private memory grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB over 37 rounds of 50 MB of rows each"
    )
    assert late < 0.4 * written, f"{late / 1e6:.0f} MB are held, of {written / 1e6:.0f} MB of rows"


@pytest.mark.slow
def test_five_hundred_rounds_neither_grow_memory_nor_open_files() -> None:
    """D13."""
    config = Config(
        data="digits", clients=10, cohort=3, rounds=500, method="scaffold", model="mlp(hidden=8)", **{"eval.every": 50}
    )
    engine = Engine(assemble(config), "threads", 2)
    process, memory = psutil.Process(), []
    for row in engine.rounds():
        if row["round"] % 10 == 9:
            memory.append(process.memory_info().rss)
        if row["round"] == 99:
            files = process.num_fds()
    assert process.num_fds() == files
    engine.close()
    growth = np.polyfit(np.arange(len(memory) - 10) * 10, memory[10:], 1)[0]
    assert growth < 20e3, f"{growth:.0f} bytes a round"


@pytest.mark.full
def test_rows_that_cannot_fit_are_refused_before_round_0_with_the_arithmetic() -> None:
    config = Config(
        data="digits",
        partition="overlap(size=20)",
        clients=10**9,
        cohort=10**6,
        rounds=10**3,
        method="scaffold",
        model="mlp(hidden=4096)",
    )
    with pytest.raises(StateError, match=r"client_state=mapped|client_state"):
        Engine(assemble(config), "loop", 1)


def test_the_same_seed_gives_the_same_model_twice_and_another_seed_another() -> None:
    def model(seed: int) -> str:
        engine = Engine(
            assemble(Config(data="digits", clients=10, cohort=3, rounds=2, model="mlp(hidden=8)", seed=seed)), "loop", 1
        )
        list(engine.rounds())
        return fingerprint(engine.server.model)

    assert model(3) == model(3) != model(4)
    assert torch.get_num_threads() == 1
