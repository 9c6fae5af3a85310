"""Progress: lines for files, a bar for terminals, and nothing left on the screen by a run that fails."""

import io

import pytest
from rich.console import Console

from fedstrata.common.events import ExecutorChosen, Finished, RoundDone, Started
from fedstrata.report.progress import progress
from fedstrata.report.progress.terminal import ProgressBar, ProgressLines

START = Started(
    None, "fedavg", "digits", "mlp", "iid", 20, 5, 3, 9610, "auto", 2, notes=("iid: 1 sample is left over.",)
)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def row(n, **more):
    return {
        "round": n,
        "loss": 0.5,
        "bytes_up": 1_000_000,
        "bytes_down": 2_000_000,
        "seconds": 0.1,
        "refused": [],
        "accuracy": None,
    } | more


EVENTS = [
    START,
    RoundDone(row(0, accuracy=0.25)),
    ExecutorChosen("threads", 2, {"loop": 1000.0, "threads": 1500.0}),
    RoundDone(row(1, refused=[[7, "nonfinite", "delta holds\x1b[31m NaN\nfedstrata: error"]])),
    RoundDone(row(2, accuracy=0.75, personal=0.9)),
    Finished({}, None),
]


def played(terminal, plain=False, **more):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, markup=False, **more)
    with progress(console, plain=plain) as observer:
        for event in EVENTS:
            observer(event)
    return console.file.getvalue()


def test_lines_have_one_for_each_evaluated_round_with_totals():
    text = played(terminal=False)
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("round ")] == [
        "round 1/3  accuracy 0.2500  loss 0.5000  up 1 MB  down 2 MB  0.1 s",
        "round 2: reply of client 7 left out, nonfinite: delta holds [31m NaN fedstrata: error",
        "round 3/3  accuracy 0.7500  personal 0.9000  loss 0.5000  up 3 MB  down 6 MB  0.1 s",
    ]
    assert "fedavg on digits, iid: 20 clients, 5 a round, 3 rounds" in lines
    assert "note: iid: 1 sample is left over." in lines
    assert "executor: threads, 2 workers (samples a second: loop 1,000, threads 1,500)" in lines
    assert "\x1b" not in text


def test_a_terminal_gets_a_bar_with_score_and_bytes():
    text = played(terminal=True)
    assert "3/3" in text
    assert "up 3 MB" in text
    assert "\x1b[" in text
    assert "\x1b[31m NaN" not in text


@pytest.mark.parametrize(
    ("terminal", "plain", "kind"),
    [(True, False, ProgressBar), (True, True, ProgressLines), (False, False, ProgressLines)],
)
def test_bar_only_on_terminals_and_unless_plain(terminal, plain, kind):
    with progress(Console(file=io.StringIO(), force_terminal=terminal), plain=plain) as observer:
        assert isinstance(observer, kind)


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with progress(Console(file=io.StringIO(), force_terminal=True)) as observer:
        assert isinstance(observer, ProgressLines)


def test_a_run_that_fails_gives_the_cursor_back():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)

    def failing():
        with progress(console) as observer:
            observer(START)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert console.file.getvalue().rstrip("\n").endswith("\x1b[?25h")


def test_a_regression_shows_its_error():
    console = Console(file=io.StringIO(), width=120)
    with progress(console) as observer:
        observer(START)
        observer(RoundDone(row(0, metrics={"rmse": 1.5, "r2": None})))
    assert "rmse 1.5000" in console.file.getvalue()


def test_a_resumed_run_says_where_it_goes_on():
    console = Console(file=io.StringIO(), width=120)
    with progress(console) as observer:
        observer(Started(None, "fedavg", "digits", "mlp", "iid", 20, 5, 30, 9610, "loop", 1, first=7))
    assert "continuing with round 8" in console.file.getvalue()
