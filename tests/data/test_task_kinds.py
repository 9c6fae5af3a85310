"""Kinds of tasks: loss, metrics and targets by name; a kind of another package trains without a change here."""

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedstrata
from fedstrata import ConfigError, DataError, Federation
from fedstrata.common import plugins
from fedstrata.data import TaskKind, facts_of, find_task, task_kinds
from fedstrata.data.types import Task

PACKAGE = Path(__file__).parents[1] / "helpers" / "preference_package"
CLIENTS, PAIRS, FEATURES = 6, 150, 5


def test_a_task_reads_its_behaviour_from_its_kind():
    logits, classes = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    task = Task("classification", (5,), 3, ("a", "b", "c"))
    assert torch.equal(task.loss(logits, classes), cross_entropy(logits, classes, reduction="none"))
    assert task.score(logits, classes) == task.metrics(logits, classes)["accuracy"]
    assert (task.has_classes, task.has_accuracy, task.num_classes) == (True, True, 3)
    assert (task.input_dtype, task.target_dtype) == (torch.float32, torch.int64)
    outputs, numbers = torch.randn(4, 1), torch.randn(4)
    task = Task("regression", (80,), 1, vocabulary=9)
    assert torch.equal(task.loss(outputs, numbers), (outputs[:, 0] - numbers).square())
    assert -task.score(outputs, numbers) == pytest.approx(task.metrics(outputs, numbers)["rmse"], rel=1e-6)  # float32
    assert (task.has_classes, task.has_accuracy, task.num_classes) == (False, False, 1)
    assert (task.input_dtype, task.target_dtype) == (torch.int64, torch.float32)


def test_a_task_is_a_plain_value():
    """Its text is part of fingerprints, and processes get it as bytes."""
    task = Task("regression", (3,), 1)
    assert repr(task) == "Task(kind='regression', shape=(3,), classes=1, labels=(), vocabulary=0)"
    assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize("kind", task_kinds().values(), ids=lambda kind: kind.name)
def test_a_headline_is_among_the_metrics_and_scores_rise_with_quality(kind):
    good = torch.tensor([[3.0, 0.0], [0.0, 3.0]]) if kind.targets == "classes" else torch.tensor([[0.0], [1.0]])
    y = torch.tensor([0, 1]) if kind.targets == "classes" else torch.tensor([0.0, 1.0])
    assert kind.headline in kind.metrics(good, y)
    assert kind.score(good, y) > kind.score(good.flip(0), y)
    better = kind.metrics(good, y)[kind.headline] > kind.metrics(good.flip(0), y)[kind.headline]
    assert better == kind.larger_is_better


def test_an_unknown_kind_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"'clasification'.*Did you mean 'classification'"):
        find_task("clasification")
    with pytest.raises(ConfigError, match="'ranking'"):
        Federation.of(np.zeros((4, 2), np.float32), np.zeros(4), client=[0, 0, 1, 1], task="ranking")


def test_targets_of_another_kind_are_refused():
    with pytest.raises(DataError, match="labels are float64"):
        Federation.of(np.zeros((4, 2), np.float32), np.zeros(4), client=[0, 0, 1, 1], task="classification")


@pytest.fixture
def preference(monkeypatch):
    """The package is installed: its folder is on the path."""
    monkeypatch.syspath_prepend(PACKAGE)
    monkeypatch.setattr(plugins, "_found", {})
    monkeypatch.setattr(plugins, "_loaded", {})
    yield
    sys.modules.pop("fedpreference", None)


def pairs(count, rng, utility, noise=0.1):
    """[count, 2, FEATURES] items, the preferred one first by a noisy linear utility."""
    items = rng.normal(size=(count, 2, FEATURES))
    scores = items @ utility + rng.normal(scale=noise, size=(count, 2))
    return np.take_along_axis(items, np.argsort(-scores, axis=1)[:, :, None], axis=1).astype(np.float32)


def preferences(**settings):
    rng = np.random.default_rng(0)
    utility = rng.normal(size=FEATURES)
    x, test = pairs(CLIENTS * PAIRS, rng, utility), pairs(400, rng, utility)
    owner = np.repeat(np.arange(CLIENTS), PAIRS)
    weights = (np.ones(len(x)), np.ones(len(test)))
    return Federation.of(x, weights[0], client=owner, test=(test, weights[1]), task="preference", **settings)


def test_preferences_are_learned_by_a_kind_of_another_package(preference, tmp_path):
    federation = preferences(testing="server", validation=0.1)
    assert (federation.task.kind, federation.task.shape, federation.task.classes) == ("preference", (2, FEATURES), 1)
    assert isinstance(federation.task.definition, TaskKind)
    settings = {"rounds": 8, "local.lr": 0.5, "local.epochs": 2, "executor": "loop", "out": str(tmp_path)}
    result = fedstrata.run("fedavg", federation=federation, model="utility", **settings)
    assert result.rounds[-1]["metrics"]["accuracy"] > 0.8
    assert result.summary["accuracy"]["selected"] > 0.8
    assert result.summary["metrics"]["log_loss"] < 0.5
    assert json.loads((result.folder / "manifest.json").read_text())["versions"]["fed-preference"] == "1.0"


def test_methods_budgets_and_facts_serve_preferences(preference, tmp_path):
    federation = preferences(testing="both")
    settings = {"rounds": 20, "local.lr": 0.5, "executor": "batched", "out": str(tmp_path), "stop.accuracy": 0.8}
    result = fedstrata.run("scaffold", federation=federation, model="utility", **settings)
    assert result.summary["stopped_by"] == "stop.accuracy"
    assert result.summary["accuracy"]["personal"] > 0.7
    facts = facts_of(federation)
    assert (facts.kind, facts.labels, facts.chance, facts.has_accuracy) == ("preference", (), None, True)
    assert set(facts.skew) >= {"quantity_gini", "feature_shift"}
