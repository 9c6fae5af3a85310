"""A run that is killed at any named point and resumed ends bit for bit where the uninterrupted one ends (faults rows
41, 52, 53).

Children are forked, so a kill costs milliseconds and every point can be tried, not a sample of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings

import pytest
import torch

from fedstrata.common.errors import StateError
from fedstrata.common.random_streams import stream
from fedstrata.storage import (
    Checkpoint,
    MappedRows,
    MemoryRows,
    append_line,
    atomic_files,
    committed,
    crash_point,
    load,
    lock,
    save,
    sha256_of,
    truncate_lines,
)
from helpers.tiers import tiered

ROUNDS = 4


def train(folder, store):
    """A run in small: each round moves the model, writes some clients' states and a line, and commits all of it."""
    with lock(folder):
        rows, model, done, length = store(), torch.zeros(50), -1, 0
        if committed(folder):
            checkpoint = load(folder, rows)
            model, done, length = checkpoint.tensors["model"], checkpoint.round, checkpoint.meta["lines"]
        truncate_lines(folder / "rounds.jsonl", length)
        for at in range(done + 1, ROUNDS):
            for client in stream(1, "cohort", at).choice(6, 2, replace=False).tolist():
                state = rows.get(client) or {"local": torch.zeros(8)}
                model = model * 0.9 + state["local"].sum() + at
                rows.put(at, {client: {"local": state["local"] * 0.5 + model[:8]}})
                crash_point("client")
            length = append_line(folder / "rounds.jsonl", {"round": at, "sum": model.sum().item()})
            save(folder, Checkpoint(at, {"model": model}, {"lines": length}), rows)


def outcome(folder):
    rows = MemoryRows()
    checkpoint = load(folder, rows)
    assert checkpoint.round == ROUNDS - 1
    personal = [rows.get(client) for client in range(6)]
    return (
        sha256_of([checkpoint.tensors["model"]]),
        [row and sha256_of(row.values()) for row in personal],
        (folder / "rounds.jsonl").read_bytes(),
        checkpoint.meta,
    )


def killed(folder, store, order):
    """Run in a child that kills itself at the point ordered; True if it did."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns of any fork beside threads; the child only runs our code
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ["FEDSTRATA_CRASH"] = order
            atomic_files._passed.clear()
            train(folder, store)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twin")
    train(folder, MappedRows)
    return outcome(folder)


@pytest.mark.parametrize("store", tiered([MemoryRows, MappedRows], ()))
def test_a_kill_at_any_point_changes_nothing(tmp_path, twin, store):
    count = 0
    while True:
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        if not killed(folder, store, f"*:{count}"):
            break
        train(folder, store)
        assert outcome(folder) == twin, f"killed at point {count}"
        assert not [path for path in folder.iterdir() if path.name.endswith((".tmp", ".aside"))]
    assert count > 80  # the run has that many points, and each was tried


@pytest.mark.parametrize("seed", tiered(range(20), range(3)))
def test_several_kills_in_a_row_change_nothing(tmp_path, twin, seed):
    rng = stream(seed, "kills")
    for _ in range(4):
        killed(tmp_path, MappedRows, f"*:{rng.integers(1, 60)}")
    train(tmp_path, MappedRows)
    assert outcome(tmp_path) == twin


@pytest.mark.parametrize(
    "point",
    ["rows.inside", "state.written", "state.renamed", "manifest.synced", "committed", "verified", "removed", "pruned"],
)
def test_points_have_names(tmp_path, twin, point):
    assert killed(tmp_path, MappedRows, f"{point}:2")
    train(tmp_path, MappedRows)
    assert outcome(tmp_path) == twin


def test_a_kill_during_rotation_leaves_two_good_checkpoints(tmp_path):
    for count in range(1, 4):
        folder = tmp_path / str(count)
        folder.mkdir()
        assert killed(folder, MappedRows, f"removed:{count}")
        newest = committed(folder)[:2]
        assert len(newest) == 2
        for previous in (False, True):
            assert load(folder, MappedRows(), previous=previous).round == newest[previous]


READ = """
import sys
from pathlib import Path
from fedstrata.storage import MappedRows, load, sha256_of
print(sha256_of([load(Path(sys.argv[1]), MappedRows()).tensors["model"]]))
"""


@pytest.mark.full
def test_another_process_reads_what_this_one_saved(tmp_path, twin):
    train(tmp_path, MappedRows)
    printed = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert printed == twin[0]


def test_without_the_variable_nothing_is_counted(monkeypatch):
    monkeypatch.delenv("FEDSTRATA_CRASH", raising=False)
    before = atomic_files.passed()
    crash_point("any")
    assert atomic_files.passed() == before


def test_points_are_counted_without_a_kill(monkeypatch):
    monkeypatch.setattr(atomic_files, "_passed", type(atomic_files._passed)())
    monkeypatch.setenv("FEDSTRATA_CRASH", "*:0")
    crash_point("any")
    crash_point("other")
    assert atomic_files.passed() == {"any": 1, "other": 1, "*": 2}


@pytest.mark.parametrize("order", ["state.written", "state.written:", ":3", "state.written:x", "state.written:-1"])
def test_an_invalid_crash_order_is_refused(monkeypatch, order):
    monkeypatch.setenv("FEDSTRATA_CRASH", order)
    with pytest.raises(StateError, match="name:count"):
        crash_point("any")
