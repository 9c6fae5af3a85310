"""Sweeps: the same number of trials for every method, drawn once for all calls, judged on validation data only."""

import shlex
from collections import Counter

import pytest

from fedstrata.compare.entries import read_competitors
from fedstrata.compare.sweep import MethodSweep, SweepRequest, Trial, VariedSetting, draw, sweep, text_with
from fedstrata.config.config import Config
from fedstrata.runs.result import Result
from helpers.comparisons import SMALL

BASE = Config(**SMALL)
HERE = [lambda event: None]


def drawn(trials, *methods, seeds=(0,)):
    asked = SweepRequest.of(
        methods, ["local.lr=0.01,0.03,0.1", "fedprox.mu=0.1,1", "moon.mu=1,2,3"], BASE, trials=trials, seeds=seeds
    )
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


def test_all_methods_try_the_same_values_of_what_is_varied_for_all():
    found = drawn(2, "fedavg", "fedprox", "moon + fedavgm")
    rates = [[trial["local.lr"] for trial in trials] for trials in found.values()]
    assert rates[0] == rates[1] == rates[2]
    assert len(set(rates[0])) == 2


@pytest.mark.parametrize("count", range(1, 25))
def test_no_combination_is_drawn_twice_and_all_come_as_often(count):
    grid = [
        VariedSetting("local.lr", ("1", "2", "3", "4")),
        VariedSetting("a.x", ("1", "2", "3")),
        VariedSetting("a.y", ("1", "2")),
    ]
    trials = [tuple(trial.items()) for trial in draw(grid, count, "a")]
    assert len(set(trials)) == count
    assert [tuple(key for key, _ in trial) for trial in trials] == [("local.lr", "a.x", "a.y")] * count
    for times in (Counter(dict(trial)["local.lr"] for trial in trials), Counter(trial[1:] for trial in trials)):
        assert max(times.values()) - min(times.values()) <= 1
    assert len({dict(trial)["local.lr"] for trial in trials}) == min(count, 4)


def test_the_proposed_comparison_is_as_it_was_typed_on_seeds_that_chose_nothing():
    words = ("mine.toml", "data=table(path='a b.csv', label=ill)", "name=tuned", "validation=0.2")
    asked = SweepRequest.of(["fedavg"], ["local.lr=0.01,0.1"], BASE, seeds=(1, 7), command_words=words)
    found = [MethodSweep("fedavg", 2, (Trial("fedavg | local.lr=0.1", {}, 0.5),))]
    said = shlex.split(asked.command_of(found))
    assert said == [
        "fedstrata",
        "compare",
        *words[:2],
        words[3],
        "--methods",
        "fedavg | local.lr=0.1",
        "--seeds",
        "0",
        "2",
        "3",
    ]


def test_values_are_written_into_the_text_of_the_method():
    (competitor,) = read_competitors(["fedprox(0.5) + fedavgm(lr=0.3) | local.epochs=2"], BASE)
    assert text_with(competitor, {"fedprox.mu": "0.1", "fedavgm.beta": "0.5", "local.lr": "0.01"}) == (
        "fedprox(mu=0.1) + fedavgm(lr=0.3, beta=0.5) | local.epochs=2 local.lr=0.01"
    )
    (competitor,) = read_competitors(["lgfedavg(personal='role:head') + fedprox"], BASE)
    assert text_with(competitor, {}) == "lgfedavg(personal='role:head') + fedprox"


def test_the_best_validation_score_chooses_and_the_test_does_not(tmp_path):
    told = sweep(
        ["fedavg", "fedprox"],
        ["local.lr=0.001,0.1,0.2"],
        trials=3,
        seeds=(0, 1),
        observers=HERE,
        **SMALL,
        out=str(tmp_path),
    )
    folders = [path for path in (tmp_path / "cache").iterdir() if path.name[0] != "."]
    assert len(folders) == 12
    for one in told.methods:
        for trial in one.trials:
            name, _, rate = trial.method.partition(" | local.lr=")
            runs = [
                Result.read(path)
                for path in folders
                if (c := Config.read(path / "config.toml")).method == name and c.local.lr == float(rate)
            ]
            assert trial.score == pytest.approx(
                sum(max(row["validation"] for row in run.rounds) for run in runs) / 2, abs=1e-12
            )  # order of a sum
        assert one.chosen.score == max(trial.score for trial in one.trials)
        assert one.chosen.values["local.lr"] != "0.001"
    assert told.command.endswith(
        f"--methods '{told.methods[0].chosen.method}' '{told.methods[1].chosen.method}' --seeds 2 3 4"
    )


def test_the_first_of_equals_is_chosen_and_a_failed_trial_never():
    trials = (Trial("a", {}, None, "failed"), Trial("b", {}, 0.5), Trial("c", {}, 0.5), Trial("d", {}, 0.1))
    assert (MethodSweep("m", 4, trials).chosen.method, MethodSweep("m", 4, trials).tied) == ("b", 1)
    assert (MethodSweep("m", 1, trials[:1]).chosen, MethodSweep("m", 1, trials[:1]).tied) == (None, 0)
    assert MethodSweep("m", 2, trials[2:]).tied == 0
