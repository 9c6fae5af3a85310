"""Sweeps: the same number of trials for every method, drawn once for all calls, judged on validation data only."""

import pytest

from contests import SMALL
from fedstrata.compare.grid import rivals
from fedstrata.compare.sweep import Swept, Trial, Trials, sweep, text_with
from fedstrata.config import Config
from fedstrata.report.result import Result

BASE = Config(**SMALL)
HERE = [lambda event: None]


def drawn(trials, *methods, seeds=(0,)):
    asked = Trials.of(methods, ["local.lr=0.01,0.03,0.1", "fedprox.mu=0.1,1", "moon.mu=1,2,3"], BASE, trials=trials, seeds=seeds)
    return asked.drawn


def test_every_method_gets_the_same_number_of_trials_from_its_own_grid():
    found = drawn("auto", "fedavg", "fedprox", "moon + fedavgm")
    assert {label: len(trials) for label, trials in found.items()} == {"fedavg": 3, "fedprox": 3, "moon + fedavgm": 3}
    assert {tuple(trial) for trial in found["fedavg"]} == {("local.lr",)}
    assert {tuple(trial) for trial in found["fedprox"]} == {("local.lr", "fedprox.mu")}
    for trials in found.values():
        assert len({tuple(trial.items()) for trial in trials}) == 3, "without replacement"


def test_the_same_trials_are_drawn_in_every_call_and_they_are_spread_over_the_grid():
    assert drawn(4, "fedprox", "moon") == drawn(4, "fedprox", "moon")
    seen = {trial["fedprox.mu"] for trial in drawn(5, "fedprox", "moon")["fedprox"]}
    assert seen == {"0.1", "1"}


def test_values_are_written_into_the_text_of_the_method():
    (rival,) = rivals(["fedprox(0.5) + fedavgm(lr=0.3) | local.epochs=2"], BASE)
    assert text_with(rival, {"fedprox.mu": "0.1", "fedavgm.beta": "0.5", "local.lr": "0.01"}) == (
        "fedprox(mu=0.1) + fedavgm(lr=0.3, beta=0.5) | local.epochs=2 local.lr=0.01"
    )
    (rival,) = rivals(["lgfedavg(personal='role:head') + fedprox"], BASE)
    assert text_with(rival, {}) == "lgfedavg(personal='role:head') + fedprox"


def test_the_best_validation_score_chooses_and_the_test_does_not(tmp_path):
    told = sweep(["fedavg", "fedprox"], ["local.lr=0.001,0.1,0.2"], trials=3, seeds=(0, 1), observers=HERE, **SMALL, out=str(tmp_path))
    folders = [path for path in (tmp_path / "cache").iterdir() if path.name[0] != "."]
    assert len(folders) == 12
    for one in told.methods:
        for trial in one.trials:
            name, _, rate = trial.method.partition(" | local.lr=")
            runs = [Result.read(path) for path in folders if (c := Config.read(path / "config.toml")).method == name and c.local.lr == float(rate)]
            assert trial.score == pytest.approx(sum(max(row["validation"] for row in run.rounds) for run in runs) / 2, abs=1e-12)  # order of a sum
        assert one.chosen.score == max(trial.score for trial in one.trials)
        assert one.chosen.values["local.lr"] != "0.001"
    assert told.command.endswith(f"--methods '{told.methods[0].chosen.method}' '{told.methods[1].chosen.method}'")


def test_the_first_of_equals_is_chosen_and_a_failed_trial_never():
    trials = (Trial("a", {}, None, "failed"), Trial("b", {}, 0.5), Trial("c", {}, 0.5), Trial("d", {}, 0.1))
    assert Swept("m", 4, trials).chosen.method == "b"
    assert Swept("m", 1, trials[:1]).chosen is None
