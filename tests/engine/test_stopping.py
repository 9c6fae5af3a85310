"""Budgets and targets: what ends a run before its last round."""

import pytest
import torch

from fedstrata.common.errors import ConfigError
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import assemble
from fedstrata.engine.ledger import Cost
from fedstrata.engine.stopping import StopRule
from fedstrata.runs.run import Stopped, resume, run
from fedstrata.wire.frame import MessageSize
from helpers import lab

COMPARED = ("accuracy", "bytes_up", "bytes_down", "flops", "rounds", "stopped_by", "model_sha256")


def go(tmp_path, name="run", stop=None, **settings):
    data, module = lab.TOYS["layer"]()
    config = lab.config(**{"out": str(tmp_path), "name": name, "rounds": 8, "eval.every": 1} | settings)
    return run(config, federation=data, module=module, stop=stop)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return go(tmp_path_factory.mktemp("whole"))


def score(row):
    return row["accuracy"] if row["accuracy"] is not None else row["shared_on_clients"]


def until(result, key, amount):
    """Rounds up to the one whose total reaches an amount."""
    total = 0
    for row in result.rounds:
        total += row["bytes_up"] + row["bytes_down"] if key == "bytes" else row[key]
        if total >= amount:
            return row["round"] + 1
    return len(result.rounds)


@pytest.mark.parametrize("share", [0.01, 0.4, 0.5, 1.0])
@pytest.mark.parametrize("key", ["bytes", "flops"])
def test_a_budget_ends_the_run_with_the_first_round_that_reaches_it(tmp_path, whole, key, share):
    total = whole.summary["bytes_up"] + whole.summary["bytes_down"] if key == "bytes" else whole.summary["flops"]
    amount = max(1, int(share * total))
    result = go(tmp_path, **{f"stop.{key}": amount})
    assert result.summary["rounds"] == until(whole, key, amount)
    assert result.summary["stopped_by"] == f"stop.{key}"
    assert [row["loss"] for row in result.rounds] == [row["loss"] for row in whole.rounds[: len(result.rounds)]]


def test_the_round_that_ends_a_run_is_evaluated_like_a_last_one(tmp_path, whole):
    result = go(tmp_path, **{"stop.bytes": 1, "eval.every": 100})
    assert [row["evaluated"] for row in result.rounds] == [True]
    assert (
        result.summary["accuracy"]["final"] == whole.rounds[0]["accuracy"]
        or result.summary["accuracy"]["final"] == whole.rounds[0]["shared_on_clients"]
    )


def test_a_budget_of_seconds_ends_the_run(tmp_path):
    result = go(tmp_path, **{"stop.seconds": 1e-9})
    assert (result.summary["rounds"], result.summary["stopped_by"]) == (1, "stop.seconds")


def test_a_run_that_reaches_its_accuracy_ends_there_and_one_that_does_not_goes_on(tmp_path, whole):
    curve = [score(row) for row in whole.rounds]
    target = max(curve)
    result = go(tmp_path, **{"stop.accuracy": target})
    assert result.summary["rounds"] == curve.index(target) + 1
    assert result.summary["stopped_by"] == "stop.accuracy"
    missed = go(tmp_path, "missed", **{"stop.accuracy": 1.0})
    assert (missed.summary["rounds"], missed.summary["stopped_by"]) == (8, None)


def test_validation_data_say_when_an_accuracy_is_reached_where_there_are_some():
    ending = StopRule(accuracy=0.5)
    assert ending.reached({"validation": 0.4, "accuracy": 0.9}) is None
    assert ending.reached({"validation": None, "accuracy": 0.9}) == "stop.accuracy"
    assert ending.reached({"validation": None, "accuracy": None, "shared_on_clients": 0.5}) == "stop.accuracy"
    assert ending.reached({}) is None
    assert StopRule().spent(Cost(MessageSize(10**12, 0), MessageSize(10**12, 0), 1e30), 1e9) is None


def test_a_run_with_a_budget_that_was_interrupted_ends_where_an_uninterrupted_one_does(tmp_path):
    budget = {"stop.bytes": 10_000}
    plain = go(tmp_path, "plain", **budget)
    assert 1 < plain.summary["rounds"] < 8
    with pytest.raises(Stopped) as stopped:
        go(tmp_path, "broken", stop=lambda: True, **budget)
    data, module = lab.TOYS["layer"]()
    again = resume(stopped.value.folder, federation=data, module=module)
    assert {k: again.summary[k] for k in COMPARED} == {k: plain.summary[k] for k in COMPARED}
    finished = resume(stopped.value.folder, federation=data, module=module)  # nothing is left to do
    assert {k: finished.summary[k] for k in COMPARED} == {k: plain.summary[k] for k in COMPARED}


def test_an_accuracy_to_reach_is_refused_where_there_is_none():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = Federation.of(x, x.sum(1), partition="iid", clients=6)
    with pytest.raises(ConfigError, match=r"stop\.accuracy is 0\.5, but a regression has no accuracy"):
        assemble(lab.config(**{"stop.accuracy": 0.5}), data, torch.nn.Sequential(torch.nn.Linear(3, 1)))
