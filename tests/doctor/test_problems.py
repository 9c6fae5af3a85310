"""Problems that were planted are found, with exact numbers and names; where there are none, nothing is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedstrata.config.config import Config
from fedstrata.data import Federation
from fedstrata.doctor import examine

CONFIG = Config(model="logistic", rounds=5, executor="loop")


def federation(sizes, *, classes=2, names=None, labels=None, tested=400, seed=0, test=None, **more):
    """Clients of these sizes, with samples that are all different, and a server test set."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(names or [f"c{i:02d}" for i in range(len(sizes))], sizes)
    y = np.concatenate([np.arange(n) % classes for n in sizes]) if labels is None else np.asarray(labels)
    late = rng.normal(size=(tested, 4)).astype(np.float32), np.arange(tested) % classes
    return Federation.of(
        rng.normal(size=(sum(sizes), 4)).astype(np.float32),
        y,
        client=owners,
        test=late if test is None else test,
        **more,
    )


def found(fed, config=CONFIG, **more):
    return {p.code: p for p in examine(config, federation=fed, **more).problems}


def test_a_sound_federation_has_no_serious_problem():
    said = found(federation([40] * 10, testing="both", validation=0.1, tested=40_000))
    assert set(said) == set()


def test_planted_test_samples_are_counted_and_told_with_the_client_and_the_places():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2
    late = rng.normal(size=(200, 4)).astype(np.float32)
    late[[7, 9, 11]] = x[[41, 3, 3]]
    said = found(Federation.of(x, y, client=np.repeat(["ann", "bob", "cid"], 20), test=(late, np.arange(200) % 2)))
    problem = said["train-test-duplicates"]
    assert (problem.weight, problem.count) == ("serious", 3)
    assert "3 of 200 test samples (1.5 %)" in problem.text
    assert "number 41 of the training set (cid) and number 7 of the test set" in problem.text


def test_few_leaks_weigh_less_than_many():
    fed = federation([50] * 4, tested=1000)
    x = fed.train.x.clone()
    late = fed.test.x.clone()
    late[5] = x[8]
    one = Federation.of(x, fed.train.y, client=np.repeat(np.arange(4), 50), test=(late, fed.test.y))
    assert found(one)["train-test-duplicates"].weight == "look"


def test_contents_held_by_two_clients_and_under_two_labels_are_counted():
    fed = federation([20] * 3)
    x = fed.train.x.clone()
    x[20] = x[0]  # another client, the same label
    x[3] = x[2]  # the same client, another label
    said = found(
        Federation.of(x, fed.train.y, client=np.repeat(["ann", "bob", "cid"], 20), test=(fed.test.x, fed.test.y))
    )
    assert said["client-duplicates"].count == 1
    assert (
        "number 0 of the training set (ann) and number 20 of the training set (bob)" in said["client-duplicates"].text
    )
    assert said["two-labels"].count == 1
    assert said["duplicates"].count == 2


def test_small_clients_are_counted_and_the_first_five_named():
    said = found(federation([64, 64, 5, 6, 7, 8, 9, 10, 64, 64, 64, 64, 64]))
    problem = said["under-a-batch"]
    assert problem.count == 6
    assert "6 of 13 clients (c02, c03, c04, c05, c06, ...)" in problem.text
    assert problem.weight == "note"
    most = found(federation([10] * 9 + [64]))["under-a-batch"]
    assert (most.weight, most.remedy) == ("look", "local.batch=4")


def test_a_single_sample_is_a_note_unless_a_batch_norm_needs_two():
    fed = federation([1, 1, 40, 40])
    assert found(fed)["single-sample"].weight == "note"
    normed = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    problem = found(fed, module=normed)["single-sample"]
    assert (problem.weight, problem.count) == ("look", 2)
    assert (
        "2 of 4 clients (c00, c01) have a single training sample, on which a batch norm cannot train, and are left out"
        in problem.text
    )


def test_clients_without_samples_are_named():
    whole = federation([30, 30, 30])
    parts = [whole.partition.indices(0), np.zeros(0, np.int64), whole.partition.indices(2)]
    fed = replace(whole, partition=type(whole.partition).of("made", parts, names=("ann", "bob", "cid")))
    problem = found(fed)["empty-clients"]
    assert problem.count == 1
    assert "1 of 3 clients (bob) has no training sample and never trains" in problem.text


def test_clients_of_one_class_are_counted():
    problem = found(federation([20, 20, 20], labels=[0] * 20 + [0, 1] * 20))["one-class"]
    assert (problem.count, problem.weight) == (1, "note")
    assert found(federation([20, 20, 20], labels=[0] * 20 + [1] * 20 + [0, 1] * 10))["one-class"].weight == "look"


def test_a_class_that_is_tested_and_never_trained_is_serious():
    problem = found(federation([20, 20], labels=[0, 1] * 20, classes=3))["untrained-classes"]
    assert (problem.weight, problem.count) == ("serious", 1)
    assert "1 classes (2)" in problem.text


def test_clients_without_a_test_sample_of_their_own_are_named():
    rng = np.random.default_rng(0)
    late = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2, np.repeat(["c00", "c02"], 30)
    said = found(federation([30, 30, 30], test=late, testing="both"))
    assert said["no-own-test"].count == 1
    assert "1 of 3 clients (c01) has no test sample and has no personal score" in said["no-own-test"].text
    assert "small-own-tests" not in said


def test_tests_too_small_to_tell_methods_apart_are_told_with_the_width():
    said = found(federation([40] * 4, tested=96))["small-test"]
    assert "96 test samples is known to 10.0 points" in said.text  # 1.96 sqrt(0.25 / 96)


def test_settings_that_hide_a_result_are_told():
    said = found(federation([40] * 4))
    assert said["no-validation"].remedy == "validation=0.1"
    assert said["no-own-tests"].remedy == "test=both"


def test_clients_that_are_never_drawn_are_told():
    said = found(federation([20] * 100), CONFIG.replace(cohort=2, rounds=10))["participation"]
    assert "a client takes part 0.2 times on average, and about 82 % of them never do" in said.text  # 0.98^10


def test_one_client_is_no_federation():
    assert "one-client" in found(federation([60]))


def test_names_that_would_break_a_terminal_are_made_harmless():
    problem = found(federation([5, 40], names=["\x1b[31m" + "n" * 60, "calm"]))["under-a-batch"]
    assert "\x1b" not in problem.text
    assert "?[31mnnnn" in problem.text
    assert len(problem.text) < 160


def test_the_weightiest_comes_first():
    order = [
        p.weight
        for p in examine(
            CONFIG, federation=federation([5] * 6, labels=[0, 1, 0, 1, 0] * 6, classes=3, tested=30)
        ).problems
    ]
    assert order == sorted(order, key=["serious", "look", "note"].index)
    assert order[0] == "serious"


@pytest.mark.parametrize("quick", [False, True])
def test_quick_leaves_duplicates_and_clocks_out(quick):
    fed = federation([20] * 3)
    x = fed.train.x.clone()
    x[1] = x[0]
    diagnosis = examine(
        CONFIG,
        federation=Federation.of(x, fed.train.y, client=np.repeat([0, 1, 2], 20), test=(fed.test.x, fed.test.y)),
        quick=quick,
    )
    assert any(p.code == "duplicates" for p in diagnosis.problems) is not quick
    assert any(c.unit == "seconds" for c in diagnosis.costs) is not quick
    assert (diagnosis.seconds is None) is quick
