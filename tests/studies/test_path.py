"""The straight line between two models: its ends, its barrier, and the statistics of norms along it."""

import json

import pytest
import torch
from torch import nn

import fedstrata
from fedstrata.common.errors import ConfigError
from fedstrata.inference.finished_run import open_run
from fedstrata.runs.run import run as run_it
from fedstrata.studies.path import Path, barrier_of, recompute_statistics
from helpers import lab

SMALL = Path(samples=54, points=5, batch=16)


def trained(folder, name, toy="layer", **settings):
    data, module = lab.TOYS[toy]() if isinstance(toy, str) else toy
    known = {"rounds": 2, "out": str(folder), "name": name, "cohort": min(3, data.clients)}
    run_it(lab.config(method="fedavg", **known | settings), federation=data, module=module)
    return open_run(folder / name, federation=data, module=module)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("path")
    made = {
        f"{toy}{seed}": trained(folder, f"{toy}{seed}", toy, seed=seed) for toy in ("layer", "batch") for seed in (1, 2)
    }
    return made | {"layer3": trained(folder, "layer3", seed=3)}


def pick(runs, *names):
    return {name: runs[name] for name in names}


def mean_loss(run, x, y):
    """Of the model as users load it: another path through the code."""
    with torch.no_grad():
        return float(nn.functional.cross_entropy(run.module()(x), y))


def everything(run):
    index = torch.cat([run.federation.training(c) for c in range(run.federation.clients)])
    return run.federation.train.take(index), run.federation.train.y[index]


@pytest.mark.parametrize(("toy", "study"), [("layer", SMALL), ("batch", Path(samples=54, points=5, statistics="mix"))])
def test_the_ends_of_the_path_are_the_two_served_models(runs, toy, study):
    both = pick(runs, f"{toy}1", f"{toy}2")
    numbers = study.study(both).numbers
    pair = numbers["pairs"][f"{toy}1 to {toy}2"]
    for end, (label, run) in zip((0, -1), both.items(), strict=True):
        assert pair["loss"][end] == pytest.approx(mean_loss(run, *everything(run)), rel=1e-5)
        assert pair["loss"][end] == numbers["served"][label]["loss"]
        assert pair["score"][end] == numbers["served"][label]["score"]
    assert pair["at"] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert numbers["samples"] == 54


def test_of_test_samples_the_ends_are_the_scores_of_the_runs(runs):
    both = pick(runs, "layer1", "layer2")
    pair = Path(samples=1000, split="test", points=3).study(both).numbers["pairs"]["layer1 to layer2"]
    for end, run in zip((0, -1), both.values(), strict=True):
        assert pair["loss"][end] == pytest.approx(run.result.rounds[-1]["metrics"]["log_loss"], rel=1e-5)
        assert pair["score"][end] == pytest.approx(run.result.rounds[-1]["accuracy"])


def test_points_between_are_the_weighted_means_of_all_parameters(runs):
    both = pick(runs, "layer1", "layer2")
    pair = SMALL.study(both).numbers["pairs"]["layer1 to layer2"]
    one, two = (run.module() for run in both.values())
    x, y = everything(both["layer1"])
    with torch.no_grad():
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            a.copy_(0.75 * a + 0.25 * b)
        output = one(x)
    assert pair["loss"][1] == pytest.approx(float(nn.functional.cross_entropy(output, y)), rel=1e-5)
    assert pair["score"][1] == pytest.approx(float((output.argmax(1) == y).double().mean()))
    assert pair["distance"] == pytest.approx(
        float((both["layer2"].served.flat - both["layer1"].served.flat).norm()), rel=1e-5
    )


def test_the_barrier_is_the_largest_excess_over_the_line_between_the_ends():
    places = [0.0, 0.25, 0.5, 0.75, 1.0]
    assert barrier_of(places, [1.0, 2.0, 3.5, 3.0, 3.0]) == (1.5, 0.5)  # the line: 1, 1.5, 2, 2.5, 3
    assert barrier_of(places, [3.0, 2.75, 2.25, 1.4, 1.0]) == (0.25, 0.25)
    assert barrier_of(places, [3.0, 2.0, 1.0, 1.0, 1.0]) == (0.0, 0.0)
    assert barrier_of(places, [1.0, None, 1.0, 1.0, 1.0]) == (None, None)


def mirrored(tmp_path):
    """Two runs whose models compute the same with their hidden units in another order."""
    made = {}
    data, _ = lab.TOYS["layer"]()
    module = lab.filled(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    for name in ("plain", "mirrored"):
        if name == "mirrored":
            with torch.no_grad():
                module[0].weight.copy_(module[0].weight.flip(0))
                module[0].bias.copy_(module[0].bias.flip(0))
                module[2].weight.copy_(module[2].weight.flip(1))
        made[name] = trained(tmp_path, name, (data, module), rounds=12, local_epochs=3)
    return made


def test_the_same_model_with_its_units_in_another_order_lies_behind_a_barrier(tmp_path):
    both = mirrored(tmp_path)
    pair = SMALL.study(both).numbers["pairs"]["plain to mirrored"]
    assert pair["loss"][0] == pytest.approx(pair["loss"][-1], rel=1e-4)
    assert pair["loss"] == pytest.approx(pair["loss"][::-1], rel=1e-3)
    assert pair["barrier"] > 0.05
    assert pair["barrier_at"] == 0.5


def test_a_convex_loss_has_no_barrier(tmp_path):
    data, _ = lab.TOYS["layer"]()
    module = lab.filled(nn.Sequential(nn.Linear(6, 3)))
    both = {
        name: trained(tmp_path, name, (data, module), seed=seed, local_lr=0.5) for name, seed in (("a", 1), ("b", 2))
    }
    pair = SMALL.study(both).numbers["pairs"]["a to b"]
    assert pair["barrier"] == 0.0
    assert pair["loss"][2] < (pair["loss"][0] + pair["loss"][-1]) / 2


def test_each_further_run_is_paired_with_the_first(runs):
    outcome = SMALL.study(pick(runs, "layer2", "layer1", "layer3"))
    assert list(outcome.numbers["pairs"]) == ["layer2 to layer1", "layer2 to layer3"]
    loss, score, barrier = outcome.panels
    assert list(loss.series) == list(score.series) == list(barrier.x) == ["layer2 to layer1", "layer2 to layer3"]
    assert score.title == "Accuracy along the path"
    assert barrier.series["barrier"] == [pair["barrier"] for pair in outcome.numbers["pairs"].values()]


# ---- statistics of norms


def test_statistics_counted_anew_are_the_mean_over_batches_of_what_each_batch_shows(runs):
    run = runs["batch1"]
    x, _ = everything(run)
    batches = list(torch.split(x, 18))
    found = recompute_statistics(run.engine.worker, run.served, batches)
    module = run.module()
    with torch.no_grad():
        seen = [module.first(part) for part in batches]
    torch.testing.assert_close(found["norm.running_mean"], torch.stack([s.mean(0) for s in seen]).mean(0))
    torch.testing.assert_close(found["norm.running_var"], torch.stack([s.var(0) for s in seen]).mean(0))


def test_statistics_are_counted_anew_at_every_point_and_the_served_losses_are_kept_beside(runs):
    both = pick(runs, "batch1", "batch2")
    outcome = Path(samples=54, points=3, batch=54).study(both)
    pair = outcome.numbers["pairs"]["batch1 to batch2"]
    x, y = everything(both["batch1"])
    for place, t in enumerate((0.0, 0.5, 1.0)):
        one, two = (run.module() for run in both.values())
        with torch.no_grad():
            for a, b in zip(one.parameters(), two.parameters(), strict=True):
                a.copy_((1 - t) * a + t * b)
            inside = one.first(x)
            one.norm.running_mean.copy_(inside.mean(0))
            one.norm.running_var.copy_(inside.var(0))
            expected = float(nn.functional.cross_entropy(one(x), y))
        assert pair["loss"][place] == pytest.approx(expected, rel=1e-5)
    served = outcome.numbers["served"]["batch1"]["loss"]
    assert served == pytest.approx(mean_loss(both["batch1"], x, y), rel=1e-5)
    assert abs(served - pair["loss"][0]) > 1e-4
    assert outcome.numbers["statistics"] == "recompute"
    assert any("recomputed at every point" in note for note in outcome.notes)


def test_counting_anew_leaves_the_run_as_it_was(runs):
    run = runs["batch1"]
    before, kept = run.served.statistics.flat.clone(), run.engine.server.model.statistics.flat.clone()
    once = SMALL.study(pick(runs, "batch1", "batch2")).numbers
    assert torch.equal(run.served.statistics.flat, before)
    assert torch.equal(run.engine.server.model.statistics.flat, kept)
    assert [norm.momentum for norm in run.engine.worker.bound.norms] == [0.1]
    assert SMALL.study(pick(runs, "batch1", "batch2")).numbers == once


def test_averaged_statistics_are_the_weighted_means(runs):
    both = pick(runs, "batch1", "batch2")
    pair = Path(samples=54, points=5, statistics="mix").study(both).numbers["pairs"]["batch1 to batch2"]
    one, two = (run.module() for run in both.values())
    x, y = everything(both["batch1"])
    with torch.no_grad():
        for a, b in zip([*one.parameters(), *one.buffers()], [*two.parameters(), *two.buffers()], strict=True):
            if a.is_floating_point():
                a.copy_((a + b) / 2)
        assert pair["loss"][2] == pytest.approx(float(nn.functional.cross_entropy(one(x), y)), rel=1e-5)


def test_a_model_without_running_statistics_has_none_to_count(runs):
    numbers = SMALL.study(pick(runs, "layer1", "layer2")).numbers
    assert numbers["statistics"] == "none"


# ---- regression, determinism, refusals


def test_of_a_regression_the_score_is_the_root_of_the_mean_squared_error(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 4, generator=generator), torch.randn(24, generator=generator)
    data = fedstrata.Federation.of(
        x.numpy(), y.numpy(), partition="iid", clients=2, testing="server", test=(x[:8].numpy(), y[:8].numpy())
    )
    module = lab.filled(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)))
    both = {
        name: trained(tmp_path, name, (data, module), seed=seed, local_lr=0.02) for name, seed in (("a", 1), ("b", 2))
    }
    outcome = Path(samples=100, split="test", points=3).study(both)
    assert outcome.numbers["score"] == "root mean squared error"
    pair = outcome.numbers["pairs"]["a to b"]
    for end, run in zip((0, -1), both.values(), strict=True):
        assert pair["score"][end] == pytest.approx(run.result.rounds[-1]["metrics"]["rmse"], rel=1e-5)
        assert pair["loss"][end] == pytest.approx(pair["score"][end] ** 2, rel=1e-9)


def test_the_same_runs_and_settings_give_the_same_numbers(runs):
    both = pick(runs, "batch1", "batch2")
    assert json.dumps(SMALL.study(both).numbers, allow_nan=False) == json.dumps(
        SMALL.study(both).numbers, allow_nan=False
    )


def test_models_of_other_layouts_have_no_line_between_them(tmp_path, runs):
    data, _ = lab.TOYS["layer"]()
    other = trained(tmp_path, "wide", (data, lab.filled(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)))))
    with pytest.raises(ConfigError, match="layer1 and wide have models of different layouts"):
        SMALL.study({"layer1": runs["layer1"], "wide": other})


def test_networks_that_compute_differently_with_the_same_tensors_are_refused(tmp_path, runs):
    other = trained(tmp_path, "group", "group")
    assert other.engine.parts.setup.layout == runs["layer1"].engine.parts.setup.layout
    with pytest.raises(ConfigError, match="layer1 and group have networks that compute differently"):
        SMALL.study({"layer1": runs["layer1"], "group": other})


def test_dropout_makes_no_difference_to_the_line(tmp_path):
    one, other = (trained(tmp_path, f"drop{p}", (lab.federation(), lab.small("layer", drop=p))) for p in (0.1, 0.3))
    assert "one to other" in SMALL.study({"one": one, "other": other}).numbers["pairs"]


def test_norms_that_look_at_the_batch_in_one_run_alone_are_refused(tmp_path, runs):
    other = trained(tmp_path, "looks", "batch", bn="batch")
    with pytest.raises(ConfigError, match="bn=batch"):
        SMALL.study({"batch1": runs["batch1"], "looks": other})


@pytest.mark.parametrize(
    ("settings", "said"), [({"points": 2}, "path.points is 2"), ({"samples": 1}, "path.samples is 1")]
)
def test_settings_that_cannot_be_meant_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Path(**settings)
