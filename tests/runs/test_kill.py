"""A run that is killed again and again ends in the very model that an undisturbed run reaches."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fedstrata
from fedstrata.config.config import Config
from fedstrata.runs.run import resume, run
from fedstrata.storage import committed

SETTINGS: dict[str, Any] = {
    "data": "digits",
    "clients": 12,
    "cohort": 4,
    "rounds": 6,
    "model": "mlp(hidden=16, dropout=0.3)",
    "method": "scaffold + fedavgm(beta=0.5)",
    "local.lr": 0.05,
    "validation": 0.1,
    "test": "both",
}
SAME = (
    "model_sha256",
    "accuracy",
    "metrics",
    "bytes_up",
    "bytes_down",
    "framing_up",
    "framing_down",
    "flops",
    "rounds",
    "refused",
)


def in_a_forked_process(task: Callable[[], Any], crash: str | None = None) -> int:
    """Fork, run the task, leave; returns the child's wait status."""
    child = os.fork()
    if child == 0:
        try:
            if crash is not None:
                os.environ["FEDSTRATA_CRASH"] = crash
            task()
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def start(folder: Path, executor: str) -> None:
    run(Config(**SETTINGS, executor=executor, out=str(folder.parent), name=folder.name))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_twenty_kills_at_seeded_points_leave_the_same_model(tmp_path: Path, seed: int) -> None:
    start(tmp_path / "whole", "loop")
    whole = json.loads((tmp_path / "whole" / "summary.json").read_text())
    rng = random.Random(seed)
    folder = tmp_path / "killed"
    executors = ["loop", "threads", "processes"]
    kills = 0
    status = in_a_forked_process(partial(start, folder, "loop"), f"*:{rng.randint(1, 12)}")
    while kills < 20:
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            kills += 1
        else:
            assert status == 0, "a resumed run neither fails nor gives up"
        if not (folder / "manifest.json").exists():  # killed before the run had a name: nothing was promised yet
            (folder / "config.toml").unlink(missing_ok=True)
            for left in folder.glob("*"):
                left.unlink()
            folder.rmdir()
            status = in_a_forked_process(partial(start, folder, "loop"), f"*:{rng.randint(1, 12)}")
            continue
        executor = rng.choice(executors)
        status = in_a_forked_process(partial(resume, folder, executor=executor), f"*:{rng.randint(1, 14)}")
        if len(committed(folder / "checkpoints")) and committed(folder / "checkpoints")[0] == 5 and kills < 20:
            # the run reached its end before it was killed often enough: continue in a fresh folder
            assert in_a_forked_process(partial(resume, folder)) == 0
            compare(json.loads((folder / "summary.json").read_text()), whole)
            folder = tmp_path / f"killed-{kills}"
            status = in_a_forked_process(partial(start, folder, "loop"), f"*:{rng.randint(1, 12)}")
    assert in_a_forked_process(partial(resume, folder)) == 0
    compare(json.loads((folder / "summary.json").read_text()), whole)


def compare(ours: dict[str, Any], whole: dict[str, Any]) -> None:
    for key in SAME:
        assert ours[key] == whole[key], key


@pytest.mark.full
def test_two_folders_one_model(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        start(tmp_path / name, "loop")
    a, b = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("a", "b/c"))
    compare(a, b)


def test_rounds_of_a_killed_run_are_each_there_once(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    status = in_a_forked_process(partial(start, folder, "loop"), "lines.written:4")
    assert os.WIFSIGNALED(status)
    result = fedstrata.resume(folder)
    assert [row["round"] for row in result.rounds] == list(range(6))
