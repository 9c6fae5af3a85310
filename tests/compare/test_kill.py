"""A comparison that is killed with -9, processes and all, and called again, says what an undisturbed one says."""

import dataclasses
import json
import os
import random
import signal
import sys
import time
import traceback

import pytest

from fedstrata.analysis.findings import findings
from fedstrata.compare import comparison_file
from helpers.comparisons import asked, make, summaries, without_times

METHODS = ("fedavg", "scaffold", "fedprox(mu=1) | local.lr=0.1", "ditto")
TIMED = {"seconds", "eval_seconds", "time"}


def call(out, die_at=None, pause=0.0):
    """One call in a process group of its own, which kills all of the group at an event; the wait status."""
    parent = os.fork()
    if parent == 0:
        try:
            os.setpgid(0, 0)
            count = [0]

            def react(job, message):
                count[0] += 1
                if count[0] == die_at:
                    time.sleep(pause)
                    os.killpg(0, signal.SIGKILL)

            make(asked(out, METHODS, seeds=(0, 1), executor="loop"), react=react)
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            os._exit(1)
    return os.waitpid(parent, 0)[1]


def said(comparison):
    """Everything that the table shows, without times."""
    return untimed(json.loads(json.dumps(dataclasses.asdict(findings(comparison)), default=sorted)))


def untimed(value):
    """Without seconds, wherever they stand."""
    if isinstance(value, dict):
        return {name: untimed(item) for name, item in value.items() if name not in TIMED}
    return [untimed(item) for item in value] if isinstance(value, list) else value


@pytest.mark.full
def test_five_kills_of_all_processes_leave_the_same_table_and_the_same_models(tmp_path):
    whole, _ = make(asked(tmp_path / "whole", METHODS, seeds=(0, 1), executor="loop"), observers=[lambda event: None])
    rng = random.Random(5)
    for _ in range(5):
        status = call(tmp_path / "killed", die_at=rng.randint(1, 9), pause=rng.random() / 5)
        assert os.WIFSIGNALED(status), "it was killed before its end"
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert call(tmp_path / "killed") == 0
    again, started = make(asked(tmp_path / "killed", METHODS, seeds=(0, 1), executor="loop"))
    assert started == 0
    assert without_times(summaries(again)) == without_times(summaries(whole))
    is_builtin, theirs = (comparison_file.read(grid.request.folder) for grid in (again, whole))
    assert {id_: r.summary["model_sha256"] for id_, r in is_builtin.results.items()} == {
        id_: r.summary["model_sha256"] for id_, r in theirs.results.items()
    }
    assert said(dataclasses.replace(is_builtin, side_by_side=1)) == said(dataclasses.replace(theirs, side_by_side=1))
    assert not list((tmp_path / "killed" / "cache").glob("*.damaged-*")), "a kill damages nothing"
