"""Trackers: off by default, named in call syntax, loaded when asked for, and never the end of a run."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedstrata
from fedstrata import ConfigError
from fedstrata.cli.catalogue import rows
from fedstrata.common import plugins
from fedstrata.common.events import Finished, RoundDone, Started
from fedstrata.trackers import Guarded, check, trackers, tracking
from fedstrata.trackers.curves import Curves, numbers

SETTINGS = {"rounds": 3, "clients": 6, "cohort": 3, "local_epochs": 1, "eval_every": 1, "executor": "loop"}


def run(tmp_path, name="run", **more):
    return fedstrata.run("fedprox", out=str(tmp_path / "runs"), name=name, **SETTINGS | more)


@pytest.mark.full
def test_none_is_nothing_and_loads_nothing():
    code = (
        "import sys, fedstrata.trackers as t; assert t.trackers('none') == []; print([m for m in sys.modules if"
        " 'mlflow' in m or 'board' in m])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_an_unknown_tracker_names_the_nearest():
    with pytest.raises(ConfigError, match=r"there is no tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        trackers("tensorbord")


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(ConfigError, match=r"track tensorboard has no setting 'folde'\. Did you mean 'folder'"):
        trackers("tensorboard(folde='x')")


def test_a_tracker_is_named_once():
    with pytest.raises(ConfigError, match="names 'tensorboard' twice"):
        trackers("tensorboard + tensorboard(folder='x')")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nosuch", "there is no tracker 'nosuch'"),
        ("tensorboard(folde='x')", "has no setting 'folde'"),
        ("tensorboard + tensorboard", "twice"),
        ("tensorboard(folder='')", "track tensorboard.folder is empty"),
        ("mlflow(experiment='')", "track mlflow.experiment is empty"),
    ],
)
def test_a_check_and_an_opening_refuse_the_same(text, said):
    for act in (check, trackers):
        with pytest.raises(ConfigError, match=said):
            act(text)


def test_a_check_opens_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("fedstrata.trackers._build", None)
    check("none")
    check(f"tensorboard(folder='{tmp_path / 'new'}') + mlflow(uri='{tmp_path / 'file'}')")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_a_library_that_is_missing_is_named_with_the_extra(name, package, monkeypatch):
    for module in [
        m
        for m in sys.modules
        if m.split(".")[0] == package or m.startswith(("torch.utils.tensorboard", "fedstrata.trackers."))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigError,
        match=rf"track={name} needs the package {package}, which is not installed: pip install 'fedstrata\[track\]'",
    ):
        trackers(name)


class Breaking:
    """Fails from the second round on."""

    def __init__(self):
        self.seen, self.closed = [], 0

    def __call__(self, event):
        self.seen.append(type(event))
        if isinstance(event, RoundDone) and event.row["round"] == 1:
            raise OSError(28, "No space left on device")

    def close(self):
        self.closed += 1


def test_a_tracker_that_fails_is_noted_once_and_the_run_goes_on(tmp_path, capsys):
    plain = run(tmp_path, "plain")
    breaking = Breaking()
    capsys.readouterr()
    tracked = run(tmp_path, "tracked", observers=(Guarded("breaking", breaking),))
    assert tracked.summary["model_sha256"] == plain.summary["model_sha256"]
    assert breaking.seen == [Started, RoundDone, RoundDone]
    said = capsys.readouterr().err
    assert said.count("note: the tracker breaking failed") == 1
    assert "No space left on device" in said


def test_a_tracker_is_closed_after_a_failure_and_a_close_that_fails_is_silent(capsys):
    breaking = Breaking()
    guarded = Guarded("breaking", breaking)
    guarded(RoundDone({"round": 1}))
    guarded.close()
    assert breaking.closed == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_tracking_closes_however_the_run_ends(monkeypatch):
    breaking = Breaking()
    monkeypatch.setattr("fedstrata.trackers.TRACKERS._entries", {"breaking": lambda: breaking})
    with pytest.raises(RuntimeError), tracking("breaking"):
        raise RuntimeError
    assert breaking.closed == 1


def test_an_interrupt_is_not_swallowed():
    def interrupted(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guarded("x", interrupted)(Finished({}))


@dataclass(frozen=True)
class Log:
    """A tracker of somebody's own, without close."""

    path: str = "log.txt"

    def __call__(self, event):
        with Path(self.path).open("a") as file:
            file.write(type(event).__name__ + "\n")


def test_a_tracker_of_a_package_serves_and_is_listed(tmp_path, monkeypatch):
    plugin = plugins.Plugin("trackers", "log", "fed-log", "0.3", "lines", None)
    monkeypatch.setattr(plugins, "installed", lambda kind: {"log": plugin} if kind == "trackers" else {})
    monkeypatch.setitem(plugins._loaded, ("trackers", "log"), (plugin, Log))
    with tracking(f"log(path={str(tmp_path / 'log.txt')!r})") as found:
        run(tmp_path, observers=found)
    assert (tmp_path / "log.txt").read_text().split() == ["Started", "RoundDone", "RoundDone", "RoundDone", "Finished"]
    assert rows("trackers")[-1]["source"] == "plug-in: fed-log 0.3"
    with pytest.raises(ConfigError, match="track log has no setting"):
        trackers("log(file='x')")


def test_totals_are_those_of_the_summary(tmp_path):
    result = run(tmp_path)
    curves = Curves(None, 0)
    for row in result.rounds:
        last = curves.of(row)
    for name in ("bytes_up", "bytes_down", "flops", "seconds"):
        assert last[f"cost/{name}"] == pytest.approx(result.summary[name], rel=1e-12)
    again = Curves(result.folder, 2).of(result.rounds[2])
    assert again == pytest.approx(last, rel=1e-12)


def test_numbers_are_finite_and_named_by_path():
    values = {"a": 1, "b": {"c": 2.5, "d": None, "e": "text", "f": [1]}, "g": float("nan"), "h": True}
    assert dict(numbers(values)) == {"a": 1.0, "b/c": 2.5}


def test_a_place_that_cannot_be_meant_is_refused_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match=r"track=mlflow\(uri='carrier-pigeon://coop'\) cannot be opened"):
        run(tmp_path, track="mlflow(uri='carrier-pigeon://coop')")
    assert not (tmp_path / "runs").exists()


def test_a_library_of_somebody_elses_tracker_is_named_by_its_own_name(monkeypatch):
    def needs_more():
        raise ImportError("No module named 'sundial'", name="sundial.clock")

    monkeypatch.setattr("fedstrata.trackers.TRACKERS._entries", {"sun": needs_more})
    with pytest.raises(
        ConfigError, match=r"track=sun needs the package sundial, which is not installed: pip install sundial\."
    ):
        trackers("sun")
