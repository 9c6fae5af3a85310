"""Successive halving: who is kept, that survivors lose nothing, and what the audit says."""

import pytest
import torch
from rich.console import Console
from scipy.stats import beta

from fedstrata.common.errors import ConfigError
from fedstrata.compare import comparison_file, screening
from fedstrata.compare.execution import open_executor
from fedstrata.compare.request import PythonInputs
from helpers.comparisons import asked, make, summaries, without_times

METHODS = (
    "fedavg",
    "fedprox(mu=1)",
    "fedavgm(beta=0.5)",
    "fedprox(mu=5)",
    "fedavg | local.lr=0.001",
    "fedavg | local.lr=0.2",
    "fedavgm",
)
HERE = [lambda event: None]


def run_screening(planned, react=None):
    """Screening without a report: (grid, what was screened)."""
    with open_executor(planned, Console(quiet=True), plain=True, observers=HERE) as making:
        if react is not None:
            notify = making.runner.notify
            making.runner.notify = lambda job, message: (react(job, message), notify(job, message))[1]
        found = screening.run_screening(making)
        making.run_set.write("finished", found)
        return making.run_set, found


@pytest.fixture(scope="session")
def halved(tmp_path_factory):
    """Seven methods, one seed, audited in full; every event that was told."""
    told = []
    planned = asked(tmp_path_factory.mktemp("halved"), METHODS, (0,), how={"screen": 1.0}, rounds=8)
    grid, found = run_screening(planned, react=lambda job, message: told.append((job.id, message)))
    return grid, found, told


def test_the_better_half_is_kept_with_ties_and_the_baseline():
    scores = {"a": 0.5, "b": 0.4, "c": 0.4, "d": 0.4, "e": 0.1}
    assert screening.better_half(scores, "a") == ["a", "b", "c", "d"]
    assert screening.better_half(scores, "e") == ["a", "b", "c", "d", "e"]
    assert screening.better_half({"a": 0.1, "b": 0.2}, "none") == ["b"]
    assert screening.better_half({"a": 0.1}, "none") == ["a"]
    assert screening.better_half({}, "none") == []


def test_methods_are_dropped_at_a_quarter_and_at_half_of_the_rounds(halved):
    grid, found, told = halved
    assert found.rungs == (2, 4)
    assert set(found.dropped.values()) == {2, 4}
    assert len(grid.request.competitors) - len(found.dropped) <= 3, "seven, then four, then two; and the baseline"
    assert "fedavg" not in found.dropped
    assert found.dropped["fedavg | local.lr=0.001"] == 2, "one that hardly learns goes first"
    ended = [id_ for id_, message in told if message["event"] == "finished"]
    assert sorted(ended) == sorted(grid.jobs), "a full audit trains all of them to the end"


def test_survivors_go_on_and_no_round_is_trained_twice(halved, tmp_path):
    grid, _, told = halved
    rounds = [(id_, message["done"]) for id_, message in told if message["event"] == "round"]
    assert len(rounds) == len(set(rounds)) == 8 * len(grid.jobs)
    whole, _ = make(asked(tmp_path, METHODS, (0,), rounds=8), observers=HERE)
    assert without_times(summaries(grid)) == without_times(summaries(whole))


def test_what_was_screened_is_read_back(halved):
    grid, found, _ = halved
    comparison = comparison_file.read(grid.request.folder)
    assert comparison.screening == found
    assert set(comparison.results) == set(grid.jobs)


def test_the_audit_counts_what_ends_above_the_lowest_that_was_kept(halved):
    grid, found, _ = halved
    assert set(found.audited) == set(found.dropped)
    best = {label: screening.best_score(grid, label) for label in (r.entry.label for r in grid.request.competitors)}
    alive = list(best)
    expected = set()
    for rung in found.rungs:
        gone = [label for label, at in found.dropped.items() if at == rung]
        alive = [label for label in alive if label not in gone]
        expected |= {label for label in gone if best[label] > min(best[other] for other in alive if other != "fedavg")}
    assert set(found.wrongly) == expected
    assert found.share == len(expected) / len(found.dropped)


def test_the_interval_of_the_share_is_that_of_clopper_and_pearson():
    told = screening.audit_result((1, 2), {"a": 1, "b": 1, "c": 2}, ["a", "b", "c"], ["b"])
    assert told.share == 1 / 3
    assert told.low == pytest.approx(beta.ppf(0.025, 1, 3), rel=1e-9)  # the same quantiles by another way
    assert told.high == pytest.approx(beta.ppf(0.975, 2, 2), rel=1e-9)
    none = screening.audit_result((1, 2), {"a": 1}, ["a"], [])
    assert (none.low, none.high) == (0.0, pytest.approx(0.975, rel=1e-9))  # 1 - 0.025 ** (1 / 1)
    assert screening.audit_result((1, 2), {}, [], []).share is None


def test_a_part_of_the_dropped_is_audited_and_the_same_part_in_every_call():
    gone = [f"m{i}" for i in range(8)]
    assert [len(screening.audit(gone, share, 0, 5)) for share in (0.01, 0.25, 0.3, 1.0)] == [1, 2, 3, 8]
    assert screening.audit([], 0.25, 0, 5) == []
    assert screening.audit(gone, 0.25, 0, 5) == screening.audit(gone, 0.25, 0, 5)
    assert len({tuple(screening.audit(gone, 0.25, seed, 5)) for seed in range(12)}) > 3


def test_what_was_dropped_and_not_audited_has_no_result(tmp_path):
    grid, found = run_screening(asked(tmp_path, METHODS, seeds=(0,), how={"screen": True}))
    assert found.audited
    missing = set(found.dropped) - set(found.audited)
    assert missing
    comparison = comparison_file.read(grid.request.folder)
    assert {label for label, _ in comparison.results} == {r.entry.label for r in grid.request.competitors} - missing


def test_a_run_that_is_not_cached_goes_on_after_its_pause(tmp_path):
    torch.manual_seed(0)  # otherwise the network hangs on which tests ran before, and with some of them all methods tie
    python_inputs = {
        "python_inputs": PythonInputs(module=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 10))),
        "screen": 1.0,
    }
    rounds = []
    planned = asked(tmp_path, METHODS[:3], seeds=(0,), how=python_inputs, model="auto")
    grid, found = run_screening(
        planned,
        react=lambda job, message: (
            rounds.append((job.id, message.get("done"))) if message["event"] == "round" else None
        ),
    )
    assert all(job.key is None for job in grid.jobs.values())
    assert not grid.failures
    assert len(found.dropped) >= 1
    assert len(rounds) == len(set(rounds)) == 4 * 3, "no round is trained twice"


def test_screening_needs_data_to_choose_by(tmp_path):
    for settings, said in (
        ({"validation": 0.0}, "validation is 0"),
        ({"rounds": 3}, "3 rounds"),
        ({"eval_every": 2}, "eval.every is 2"),
    ):
        with pytest.raises(ConfigError, match=said):
            screening.rungs(asked(tmp_path, how={"screen": True}, **settings))
