"""Largest Hessian eigenvalues against closed forms and dense Hessians, and losses of perturbed models against those
computed by hand.
"""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata
from fedstrata.common.errors import ConfigError
from fedstrata.core.params import Model, Params
from fedstrata.inference.finished_run import open_run
from fedstrata.runs.run import run as run_it
from fedstrata.studies.directions import filterwise, gaussian
from fedstrata.studies.sharpness import Sharpness
from fedstrata.studies.spectrum import extremes, power
from fedstrata.studies.surface import Surface, positions, surfaces
from helpers import lab

CLOSE = 1e-9  # float64 throughout
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script.*:DeprecationWarning"
)  # torch.func.hessian, which only tests call, loads it


def trained(folder, toy="layer", method="fedavg", name="run", **settings):
    """A finished toy run, opened."""
    data, module = lab.TOYS[toy]() if isinstance(toy, str) else toy
    known = {"rounds": 2, "cohort": min(3, data.clients), "out": str(folder), "name": name}
    run_it(lab.config(method=method, **known | settings), federation=data, module=module)
    return open_run(folder / name, federation=data, module=module)


def linear(width=4, regression=True, samples=24):
    """(federation of one linear map, module)."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, width, generator=generator) * torch.tensor([3.0, 1.0, 0.5, 0.2])[:width]
    y = torch.randn(samples, generator=generator) if regression else torch.arange(samples) % 3
    data = fedstrata.Federation.of(
        x.numpy(), y.numpy(), partition="iid", clients=2, testing="server", test=(x[:6].numpy(), y[:6].numpy())
    )
    net = nn.Sequential(nn.Linear(width, 1 if regression else 3))
    return data, lab.filled(net)


def whole(run, samples=1000, batch=7, dtype=torch.float64):
    """The surface over all that clients train on, in batches that do not divide it."""
    return surfaces({"run": run}, "train", samples, batch, 0, dtype)["run"]


def dense(surface):
    """The Hessian and gradient of the mean loss over all samples at once, written without the surface's own
    derivatives.

    By torch.func.hessian; behind a layer or batch norm, whose forward-mode second derivatives are wrong or missing
    there, by central differences of the gradient instead.
    """
    x, y = (torch.cat(parts) for parts in zip(*surface.batches, strict=True))

    def loss(flat):
        surface.worker.features.clear()
        p = Model(Params(flat, surface.layout.spec, eval_mode=surface.eval_mode), surface.statistics)
        return surface.worker.net.loss(surface.worker.net(p, x), y).mean()

    def slope(flat):
        at = flat.clone().requires_grad_()
        return torch.autograd.grad(loss(at), at)[0]

    kinds = {type(module) for module in surface.worker.bound.body.modules()}
    if not kinds & {nn.LayerNorm, nn.BatchNorm1d}:
        return torch.func.hessian(loss)(surface.centre), slope(surface.centre)
    steps = 1e-5 * torch.eye(len(surface.centre), dtype=torch.float64)
    return torch.stack([(slope(surface.centre + d) - slope(surface.centre - d)) / 2e-5 for d in steps]), slope(
        surface.centre
    )


# ---- the spectrum


def spectrum(*values, seed=0):
    """v -> H v for a symmetric H with these eigenvalues, in a random basis."""
    rng = np.random.default_rng(seed)
    basis = torch.from_numpy(np.linalg.qr(rng.standard_normal((len(values), len(values))))[0])
    matrix = basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T
    return lambda v: matrix @ v


def test_power_iteration_finds_the_largest_eigenvalue_and_says_that_it_settled():
    found = power(spectrum(5.0, 2.0, 1.0, 0.1), torch.ones(4, dtype=torch.float64), 1e-10, 200)
    assert found.value == pytest.approx(5.0, abs=1e-8)
    assert found.converged
    assert found.change <= 1e-10
    assert found.residual <= 1e-5
    assert found.iterations < 60


def test_a_dominant_negative_eigenvalue_is_reported_beside_the_algebraically_largest_one():
    dominant, largest = extremes(spectrum(-9.0, 4.0, 1.0, -2.0), torch.ones(4, dtype=torch.float64), 1e-10, 500)
    assert (dominant.value, largest.value) == (pytest.approx(-9.0, abs=1e-7), pytest.approx(4.0, abs=1e-7))
    assert dominant.converged
    assert largest.converged


def test_of_a_negative_definite_map_the_algebraically_largest_is_the_one_nearest_to_zero():
    dominant, largest = extremes(spectrum(-3.0, -2.0, -0.5), torch.ones(3, dtype=torch.float64), 1e-11, 500)
    assert (dominant.value, largest.value) == (pytest.approx(-3.0, abs=1e-7), pytest.approx(-0.5, abs=1e-7))


def test_two_eigenvalues_of_equal_size_and_opposite_sign_are_not_taken_for_a_settled_value():
    found = power(
        lambda v: torch.tensor([2.0, -2.0], dtype=torch.float64) * v,
        torch.tensor([2.0, 1.0], dtype=torch.float64),
        1e-3,
        40,
    )
    assert found.change == pytest.approx(0.0, abs=1e-12)
    assert not found.converged
    assert found.residual > 0.5


def test_too_few_products_are_said_to_be_too_few():
    found = power(spectrum(1.0, 0.99, 0.98), torch.ones(3, dtype=torch.float64), 1e-9, 3)
    assert (found.converged, found.iterations) == (False, 3)


def test_the_residual_bounds_the_distance_to_an_eigenvalue():
    values = (7.0, 6.0, 3.0, -1.0)
    for products in (2, 3, 5, 9):
        found = power(spectrum(*values), torch.ones(4, dtype=torch.float64), 1e-15, products)
        assert min(abs(found.value - value) for value in values) <= found.residual * abs(found.value) + 1e-12


def test_a_map_that_gives_zero_has_eigenvalue_zero():
    found = power(torch.zeros_like, torch.ones(3), 1e-3, 5)
    assert (found.value, found.converged, found.residual) == (0.0, True, 0.0)


# ---- Hessians of runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharpness")
    made = {
        "regression": trained(folder, linear(), name="regression", local_lr=0.01),
        "classes": trained(folder, linear(regression=False), name="classes"),
    }
    return made | {toy: trained(folder, toy, name=toy) for toy in ("layer", "batch", "images")}


def test_of_least_squares_the_largest_eigenvalue_is_that_of_twice_the_second_moments(runs):
    surface = whole(runs["regression"])
    x = torch.cat([x for x, _ in surface.batches])
    moments = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)  # the bias reads a one
    closed = float(torch.linalg.eigvalsh(2 * moments.T @ moments / len(x))[-1])
    outcome = Sharpness(samples=1000, iterations=300, tolerance=1e-12, precision="float64", batch=7).study(
        {"a": runs["regression"]}
    )
    one = outcome.numbers["runs"]["a"]
    assert one["largest"]["value"] == pytest.approx(closed, rel=CLOSE)
    assert one["largest"] == one["largest_by_magnitude"]
    assert one["groups"]["0"]["value"] == pytest.approx(closed, rel=CLOSE)  # the model is one layer
    assert outcome.numbers["samples"] == 24


@pytest.mark.parametrize("toy", ["classes", "layer", "batch", "images"])
def test_products_are_those_of_the_dense_hessian(runs, toy):
    surface = whole(runs[toy])
    matrix, slope = dense(surface)
    names = surface.layout.spec.names
    v = gaussian(len(surface.centre), 1, "test", 0, torch.float64)
    torch.testing.assert_close(surface.hessian_product(names)(v), matrix @ v, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(surface.gradient(), slope, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("toy", ["classes", "layer", "batch", "images"])
def test_eigenvalues_are_those_of_the_dense_hessian_and_of_its_blocks(runs, toy):
    surface = whole(runs[toy])
    matrix, _ = dense(surface)
    study = Sharpness(
        samples=1000, iterations=1500, tolerance=1e-9, precision="float64", batch=7, directions=1, radii=(0.1,)
    )
    one = study.study({"a": runs[toy]}).numbers["runs"]["a"]
    values = torch.linalg.eigvalsh(matrix)
    assert one["largest"]["value"] == pytest.approx(float(values[-1]), rel=1e-5)
    assert one["largest_by_magnitude"]["value"] == pytest.approx(float(values[values.abs().argmax()]), rel=1e-5)
    assert list(one["groups"]) == list(surface.layout.groups)
    for name, group in surface.layout.groups.items():
        at = torch.cat([torch.arange(a, b) for a, b in surface.layout.spec.runs(group.names)])
        block = float(torch.linalg.eigvalsh(matrix[at][:, at])[-1])
        assert one["groups"][name]["value"] == pytest.approx(block, rel=1e-4), name


def test_multinomial_logistic_regression_has_a_hessian_without_negative_eigenvalues(runs):
    matrix, _ = dense(whole(runs["classes"]))
    assert float(torch.linalg.eigvalsh(matrix)[0]) > -1e-12
    one = Sharpness(samples=1000, precision="float64").study({"a": runs["classes"]}).numbers["runs"]["a"]
    assert one["largest"] == one["largest_by_magnitude"]


class Attentive(nn.Module):
    """Attention over tokens by torch's fused kernel."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.mix = nn.Linear(8, 24)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        q, k, v = (part.reshape(len(x), -1, 2, 4).transpose(1, 2) for part in self.mix(self.embed(x)).split(8, dim=-1))
        return self.head(nn.functional.scaled_dot_product_attention(q, k, v).mean(2).flatten(1))


class Recurrent(nn.Module):
    """A recurrent layer by torch's fused kernel."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 4)
        self.layer = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layer(self.embed(x))[0][:, -1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("network", [Attentive, Recurrent])
def test_attention_and_recurrent_layers_can_be_differentiated_twice(tmp_path, network, dtype):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(12, (24, 6), generator=generator), torch.arange(24) % 3
    data = fedstrata.Federation.of(
        x.numpy(), y.numpy(), vocabulary=12, partition="iid", clients=2, testing="own(share=0.2)"
    )
    run = trained(tmp_path, (data, lab.filled(network())), rounds=1)
    surface, exact = whole(run, dtype=dtype), whole(run)
    v = gaussian(len(exact.centre), 1, "test", 0, torch.float64)
    found = surface.hessian_product(surface.layout.spec.names)(v.to(dtype)).double()
    centre, slopes = exact.centre, []
    for step in (1e-5, -1e-5):
        exact.centre = centre + step * v
        slopes.append(exact.gradient())
    torch.testing.assert_close(found, (slopes[0] - slopes[1]) / 2e-5, rtol=1e-3, atol=1e-4)


# ---- losses nearby


def by_hand(run, flat, index):
    """Mean loss of the model as users load it, at other values, of these training samples: another path through the
    code.
    """
    module = run.module().double()
    with torch.no_grad():
        for name, value in Params(flat, run.served.spec).views.items():
            module.get_parameter(name).copy_(value)
        x, y = run.federation.train.take(index).double(), run.federation.train.y[index]
        return float(nn.functional.cross_entropy(module(x), y))


@pytest.mark.parametrize("toy", ["layer", "batch"])
def test_losses_are_those_of_the_loaded_model_moved_by_hand(runs, toy):
    run, radii = runs[toy], (0.05, 0.3)
    study = Sharpness(
        samples=20, precision="float64", directions=2, radii=radii, groups="whole", iterations=2, batch=7, rho=0.2
    )
    one = study.study({"a": run}).numbers["runs"]["a"]
    index = positions(run, "train", 20, 0)
    assert len(index) == 20
    centre = run.served.flat.double()
    assert one["loss"] == pytest.approx(by_hand(run, centre, index), rel=CLOSE)
    surface = surfaces({"a": run}, "train", 20, 7, 0, torch.float64)["a"]
    slope = surface.gradient()
    for place in range(2):
        drawn = filterwise(
            gaussian(len(centre), 0, "study/sharpness/direction", place, torch.float64), centre, surface.layout, "still"
        )
        assert one["random"][place] == pytest.approx(
            [by_hand(run, centre + r * drawn, index) for r in radii], rel=CLOSE
        )
    steep = filterwise(slope, centre, surface.layout, "still")
    assert one["filterwise_ascent"] == pytest.approx(
        [by_hand(run, centre + r * steep, index) for r in radii], rel=CLOSE
    )
    assert one["ascent"]["loss"] == pytest.approx(by_hand(run, centre + 0.2 * slope / slope.norm(), index), rel=CLOSE)
    assert one["slope"] == pytest.approx(float(slope.norm()), rel=CLOSE)


def test_of_least_squares_an_ascent_step_costs_what_the_quadratic_says(runs):
    surface = whole(runs["regression"])
    matrix, slope = dense(surface)
    step = 0.3 * slope / slope.norm()
    expected = float(slope @ step + step @ matrix @ step / 2)
    one = Sharpness(samples=1000, precision="float64", rho=0.3).study({"a": runs["regression"]}).numbers["runs"]["a"]
    assert one["ascent"]["rise"] == pytest.approx(expected, rel=1e-8)


def test_an_ascent_step_costs_more_than_random_steps_under_the_same_bound(runs):
    one = (
        Sharpness(samples=1000, radii=(0.01,), directions=20, groups="whole")
        .study({"a": runs["layer"]})
        .numbers["runs"]["a"]
    )
    assert one["filterwise_ascent"][0] > max(losses[0] for losses in one["random"])


# ---- directions


def test_each_filter_of_a_direction_is_as_long_as_that_of_the_model(runs):
    surface = whole(runs["images"])
    spec = surface.layout.spec
    drawn = gaussian(spec.total, 0, "test", 0, torch.float64)
    made = Params(filterwise(drawn, surface.centre, surface.layout, "still"), spec)
    model, given = Params(surface.centre, spec), Params(drawn, spec)
    assert model["conv.weight"].shape == (4, 1, 3, 3)
    for name in ("conv.weight", "head.weight"):
        for f in range(len(model[name])):
            assert float(made[name][f].norm()) == pytest.approx(float(model[name][f].norm()), rel=1e-12)
            cosine = float((made[name][f] * given[name][f]).sum() / made[name][f].norm() / given[name][f].norm())
            assert cosine == pytest.approx(1.0, abs=1e-12)
    for name in ("conv.bias", "norm.weight", "norm.bias", "head.bias"):
        assert not made[name].any()


def test_scaled_vectors_are_one_filter_each(runs):
    surface = whole(runs["images"])
    spec = surface.layout.spec
    made = Params(
        filterwise(gaussian(spec.total, 0, "test", 0, torch.float64), surface.centre, surface.layout, "scaled"), spec
    )
    for name in ("conv.bias", "norm.weight", "norm.bias", "head.bias"):
        assert float(made[name].norm()) == pytest.approx(float(Params(surface.centre, spec)[name].norm()), rel=1e-12)
        assert made[name].any()


def test_a_filter_of_zeros_stays_where_it_is(runs):
    surface = whole(runs["images"])
    centre = surface.centre.clone()
    Params(centre, surface.layout.spec)["conv.weight"][2] = 0
    drawn = gaussian(len(centre), 0, "test", 0, torch.float64)
    still = Params(drawn, surface.layout.spec)
    still["head.weight"][1] = 0
    made = Params(filterwise(drawn, centre, surface.layout, "still"), surface.layout.spec)
    assert not made["conv.weight"][2].any()
    assert not made["head.weight"][1].any()
    assert made["conv.weight"][1].any()


# ---- which samples


def test_training_samples_are_what_clients_train_on_and_nothing_else(tmp_path):
    x, y, client = lab.arrays((17, 12, 9, 8))
    data = fedstrata.Federation.of(
        x.numpy(), y.numpy(), client=client.numpy(), testing="own(share=0.3)", validation=0.2, heldout=0.25
    )
    assert len(data.heldout) == 1
    run = trained(tmp_path, (data, lab.small()), rounds=1)
    index = positions(run, "train", 10_000, 0)
    assert index.tolist() == sorted(
        torch.cat([data.training(c) for c in range(data.clients) if c not in data.heldout]).tolist()
    )
    fewer = positions(run, "train", 9, 0)
    assert len(set(fewer.tolist())) == 9
    assert set(fewer.tolist()) <= set(index.tolist())
    assert positions(run, "train", 9, 1).tolist() != fewer.tolist()


def test_of_test_samples_the_loss_is_the_one_of_the_run(runs):
    one = (
        Sharpness(samples=1000, split="test", groups="whole", iterations=2)
        .study({"a": runs["layer"]})
        .numbers["runs"]["a"]
    )
    assert one["loss"] == pytest.approx(runs["layer"].result.rounds[-1]["metrics"]["log_loss"], rel=1e-5)


# ---- the outcome


@pytest.mark.full
def test_the_same_runs_and_settings_give_the_same_bytes(runs, tmp_path):
    study = Sharpness(samples=30, iterations=4, directions=2)
    both = {"a": runs["layer"], "b": runs["batch"]}
    for name in ("one", "two"):
        fedstrata.studies.write_outcome(study.study(both), "sharpness", study, {}, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert [(tmp_path / "one" / f).read_bytes() for f in files] == [(tmp_path / "two" / f).read_bytes() for f in files]


def test_several_runs_stand_side_by_side(runs):
    outcome = Sharpness(samples=30, iterations=3, directions=2).study({"a": runs["layer"], "b": runs["batch"]})
    shown = {panel.title: panel for panel in outcome.panels}
    assert {tuple(panel.series) for title, panel in shown.items() if title != "Largest Hessian eigenvalue"} == {
        ("a", "b")
    }
    assert list(shown["Largest Hessian eigenvalue"].x) == ["a", "b"]
    lines = shown["Loss along 2 random directions, mean"]
    assert list(lines.x) == [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
    one = outcome.numbers["runs"]["a"]
    pair = [losses[2] for losses in one["random"]]
    assert lines.series["a"][0] == one["loss"]
    assert lines.series["a"][3] == pytest.approx(sum(pair) / 2)
    assert lines.spread["a"][3] == pytest.approx(abs(pair[0] - pair[1]) / math.sqrt(2))
    assert shown["Loss along 2 random directions, largest"].series["a"][3] == max(pair)


def test_an_eigenvalue_that_had_not_settled_is_told(runs):
    outcome = Sharpness(samples=30, iterations=2, tolerance=1e-9).study({"a": runs["layer"]})
    assert any("has not converged after 2 products" in note for note in outcome.notes)
    json.dumps(outcome.numbers, allow_nan=False)


def test_a_step_into_infinity_is_none_and_not_a_number_that_json_lacks(runs):
    outcome = Sharpness(samples=30, iterations=2, radii=(0.1, 1e30), groups="whole").study({"a": runs["layer"]})
    assert outcome.numbers["runs"]["a"]["filterwise_ascent"][1] is None
    json.dumps(outcome.numbers, allow_nan=False)


# ---- refusals


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"samples": 1}, "sharpness.samples is 1"),
        ({"batch": 1}, "sharpness.batch is 1"),
        ({"iterations": 1}, "sharpness.iterations is 1"),
        ({"tolerance": 0.0}, "sharpness.tolerance is 0"),
        ({"directions": 0}, "sharpness.directions is 0"),
        ({"rho": 0.0}, "sharpness.rho is 0"),
        ({"radii": ()}, "sharpness.radii is"),
        ({"radii": (0.2, 0.1)}, "sharpness.radii is"),
        ({"radii": (0.0, 0.1)}, "sharpness.radii is"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Sharpness(**settings)


def test_test_samples_of_a_run_without_any_are_refused(tmp_path):
    x, y, client = lab.arrays()
    data = fedstrata.Federation.of(x.numpy(), y.numpy(), client=client.numpy(), testing="own(share=0.3)")
    run = trained(tmp_path, (data, lab.small()), rounds=1)
    with pytest.raises(ConfigError, match="split=train"):
        Sharpness(split="test").study({"a": run})


def test_runs_on_different_data_are_refused(runs):
    with pytest.raises(ConfigError, match="on the same data"):
        Sharpness().study({"a": runs["layer"], "b": runs["images"]})


def test_a_model_that_has_diverged_is_refused(runs):
    run = runs["layer"]
    broken = SimpleNamespace(
        engine=run.engine,
        folder=run.folder,
        served=Model(Params(run.served.flat * math.nan, run.served.spec), run.served.statistics),
    )
    with pytest.raises(ConfigError, match="not finite"):
        Surface(broken, torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64), 4)
