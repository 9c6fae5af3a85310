"""How runs share a machine, and what is shown meanwhile."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedstrata.compare import progress, resources
from fedstrata.compare.job import Job
from fedstrata.compare.progress import ProgressBoard, progress_board
from fedstrata.compare.resources import Resources
from fedstrata.config.config import Config


def turns(left, cores=8, requested=None, **settings):
    return Resources(Config(**settings), requested, cores).executor_for(left)


def test_runs_side_by_side_come_first_and_workers_only_where_cores_are_left():
    assert Resources(Config(), None, 8).slots == 8
    assert [turns(left) for left in (24, 8, 5, 4, 2, 1)] == [
        ("loop", 1),
        ("loop", 1),
        ("loop", 1),
        ("auto", 2),
        ("auto", 4),
        ("auto", 8),
    ]
    assert turns(24, cores=1) == ("loop", 1)
    assert turns(24, requested=2) == ("auto", 4)


def test_what_is_configured_is_kept():
    assert Resources(Config(executor="threads", workers=4), None, 8).slots == 2
    assert turns(9, executor="threads", workers=4) == ("threads", 4)
    assert turns(2, executor="processes") == ("processes", 4)
    assert turns(1, executor="loop") == ("loop", 1)
    assert turns(9, executor="auto", workers=2) == ("auto", 2)
    assert Resources(Config(local_threads=4), None, 8).slots == 2


def test_where_seconds_decide_all_runs_have_the_same_share():
    assert {turns(left, stop_seconds=60.0) for left in (24, 3, 1)} == {("loop", 1)}


def test_memory_serves_fewer_than_cores_do_and_says_so(monkeypatch):
    monkeypatch.setattr(resources, "available", lambda: 10_000)
    room = Resources(Config(), None, 8, needed=3_000)
    assert room.fits([])
    assert room.fits([3_000])
    assert room.fits([3_000, 3_000])
    assert not room.fits([500, 500, 500]), "those that run will still grow"
    assert room.note == "memory allows 3 runs at a time: one takes up to 3 kB, and 10 kB are free"
    assert room.together(20) == 3
    assert Resources(Config(), None, 8).together(5) == 5
    monkeypatch.setattr(resources, "available", lambda: 1)
    assert room.fits([]), "one run is always tried"


def test_before_a_run_has_told_its_peak_it_is_taken_to_need_a_multiple_of_this_process(monkeypatch):
    rss = resources.psutil.Process().memory_info().rss
    monkeypatch.setattr(resources, "available", lambda: 20 * rss)
    assert Resources(Config(), None, 64).fits([0] * 8)
    assert not Resources(Config(), None, 64).fits([0] * 9)


def test_what_a_control_group_leaves_is_what_is_free(monkeypatch, tmp_path):
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    free = resources.available()
    (tmp_path / "memory.current").write_text("600\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert resources.available() == 400
    (tmp_path / "memory.max").write_text("max\n")
    assert resources.available() > 1_000_000
    assert free > 1_000_000


IDS = [("fedavg", 0), ("scaffold", 0)]


def job(label):
    return Job(label, 0, {}, Path("x"), "k", "", "")


def told(drawn):
    drawn.notify(job("fedavg"), {"event": "started", "first": 2, "rounds": 10})
    scores = {"accuracy": 0.5, "personal": None, "validation": 0.25}
    drawn.notify(job("fedavg"), {"event": "round", "done": 3, **scores, "seconds": 1.0, "eval_seconds": 1.0})


@pytest.mark.parametrize("terminal", [True, False])
def test_the_board_ends_in_lines_on_a_terminal_and_elsewhere(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    with progress_board(Console(file=out, force_terminal=terminal, width=120, color_system=None), IDS, 10) as drawn:
        assert (drawn.table is not None) is terminal
        told(drawn)
        drawn.tick()
        drawn.notify(job("fedavg"), {"event": "finished"})
        drawn.notify(job("scaffold"), {"event": "failed", "why": "no [bold] reason"})
    assert "fedavg, seed 0: accuracy 0.5000  validation 0.2500, 2.0 s (1 of 2 runs)" in out.getvalue()
    assert "scaffold, seed 0: failed: no [bold] reason" in out.getvalue()


def test_the_table_shows_rounds_scores_states_and_the_time_left():
    out = io.StringIO()
    console = Console(file=out, width=140, markup=False)
    drawn = ProgressBoard(console, IDS, 10, live=False)
    told(drawn)
    console.print(drawn.view())
    text = out.getvalue()
    assert "0 of 2 runs; about 34.0 s left" in text, "2 s a round: 7 rounds of the one, and 10 of the other"
    assert "3/10" in text
    assert "14.0 s" in text
    assert "accuracy 0.5000  validation 0.2500" in text
    assert text.index("running") < text.index("waiting")


def test_a_sparse_line_says_that_it_is_still_alive(monkeypatch):
    out = io.StringIO()
    drawn = ProgressBoard(Console(file=out, width=140, markup=False), IDS, 10, live=False)
    told(drawn)
    drawn.tick()
    assert out.getvalue() == ""
    monkeypatch.setattr(progress, "HEARTBEAT", -1.0)
    drawn.tick()
    assert out.getvalue() == "still running: fedavg s0 3/10; about 34.0 s left\n"
