"""Loss landscapes: the values on the map, directions that runs share, and their figure."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from fedstrata.common.errors import ConfigError
from fedstrata.core.params import Params
from fedstrata.inference.finished_run import open_run
from fedstrata.runs.run import run as run_it
from fedstrata.studies import write_outcome
from fedstrata.studies.directions import gaussian
from fedstrata.studies.landscape import Landscape, draw_maps, levels
from fedstrata.studies.surface import surfaces
from helpers import lab

SMALL = Landscape(samples=30, points=5, span=0.5)


def trained(folder, name, toy="images", **settings):
    data, module = lab.TOYS[toy]()
    run_it(
        lab.config(method="fedavg", rounds=1, out=str(folder), name=name, **settings), federation=data, module=module
    )
    return open_run(folder / name, federation=data, module=module)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("landscape")
    return {"a": trained(folder, "a"), "b": trained(folder, "b", local_lr=0.02)}


@pytest.fixture(scope="module")
def outcome(runs):
    return SMALL.study(runs)


def test_every_point_is_the_loss_of_the_model_moved_along_both_directions(runs, outcome):
    run = runs["b"]
    surface = surfaces(runs, "train", 30, 128, 0)["b"]
    x, y = SMALL.directions(surface)
    module = run.module()
    inputs, targets = (torch.cat(parts) for parts in zip(*surface.batches, strict=True))
    assert outcome.numbers["at"] == [-0.5, -0.25, 0.0, 0.25, 0.5]
    for row, b in enumerate(outcome.numbers["at"]):
        for column, a in enumerate(outcome.numbers["at"]):
            with torch.no_grad():
                for name, value in Params(run.served.flat + a * x + b * y, run.served.spec).views.items():
                    module.get_parameter(name).copy_(value)
                expected = float(nn.functional.cross_entropy(module(inputs), targets))
            assert outcome.numbers["runs"]["b"]["grid"][row][column] == pytest.approx(expected, rel=1e-5)


def test_the_middle_of_the_map_is_the_served_model_itself(runs, outcome):
    surface = surfaces(runs, "train", 30, 128, 0)["a"]
    one = outcome.numbers["runs"]["a"]
    assert one["grid"][2][2] == one["loss"] == surface.loss(surface.centre)
    assert one["least"] == min(itertools.chain(*one["grid"]))
    assert one["most"] == max(itertools.chain(*one["grid"]))


def test_the_directions_of_two_runs_are_the_same_numbers_scaled_to_the_filters_of_each(runs):
    laid = surfaces(runs, "train", 30, 128, 0)
    spec = laid["a"].layout.spec
    drawn = [Params(gaussian(spec.total, 0, "study/landscape/direction", place), spec) for place in range(2)]
    made = {label: [Params(d, spec) for d in SMALL.directions(surface)] for label, surface in laid.items()}
    for (label, surface), place in itertools.product(laid.items(), range(2)):
        model = Params(surface.centre, spec)
        for f in range(4):
            raw, scaled = drawn[place]["conv.weight"][f], made[label][place]["conv.weight"][f]
            torch.testing.assert_close(scaled, raw * model["conv.weight"][f].norm() / raw.norm())
        assert not made[label][place]["norm.weight"].any()
    assert not torch.equal(
        made["a"][0]["conv.weight"], made["b"][0]["conv.weight"]
    )  # the models differ, and so do their filters
    assert not torch.equal(made["a"][0]["conv.weight"], made["a"][1]["conv.weight"])


def test_rescaling_neighbouring_layers_leaves_the_map_as_it_is(tmp_path):
    """The reason for the scale of filters: a ReLU network computes the same when one layer is made larger and the next
    one smaller.
    """
    maps = []
    for factor in (1.0, 4.0):
        data, _ = lab.TOYS["layer"]()
        module = lab.filled(nn.Sequential(nn.Linear(6, 7, bias=False), nn.ReLU(), nn.Linear(7, 3)))
        with torch.no_grad():
            module[0].weight.mul_(factor)
            module[2].weight.div_(factor)
        config = lab.config(method="fedavg", rounds=1, out=str(tmp_path), name=f"x{factor:g}", local_lr=1e-9)
        run_it(config, federation=data, module=module)
        run = open_run(tmp_path / f"x{factor:g}", federation=data, module=module)
        maps.append(SMALL.study({"a": run}).numbers["runs"]["a"]["grid"])
    assert np.array(maps[0]) == pytest.approx(np.array(maps[1]), rel=1e-4)
    assert np.ptp(np.array(maps[0])) > 0.05


def test_profile_and_tables_show_the_numbers_of_the_map(outcome):
    profile, *tables = outcome.panels
    assert profile.kind == "lines"
    for label, table in zip("ab", tables, strict=True):
        grid = outcome.numbers["runs"][label]["grid"]
        assert profile.series[label] == grid[2]
        assert list(table.series.values()) == grid
        assert list(table.series) == list(table.x) == ["-0.5", "-0.25", "+0", "+0.25", "+0.5"]


def test_level_lines_are_even_in_the_logarithm_from_the_least_to_the_largest_loss_of_all_maps():
    found = levels(0.1, 10.0)
    steps = [math.log(b / a) for a, b in itertools.pairwise(found)]
    assert (found[0], found[-1]) == (pytest.approx(0.1), pytest.approx(10.0))
    assert steps == pytest.approx([math.log(100) / 13] * 13)
    assert levels(2.0, 2.0) == [2.0]


def test_the_sheet_has_one_map_a_run_with_one_scale_for_all(outcome):
    [picture] = outcome.pictures
    figure = Figure()
    picture.draw(figure)
    maps = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in maps] == ["a", "b"]
    scales = {
        (c.norm.vmin, c.norm.vmax)
        for axes in maps
        for c in axes.collections
        if c.get_array() is not None and c.get_array().size == 25
    }
    grids = [value for one in outcome.numbers["runs"].values() for row in one["grid"] for value in row]
    assert [pytest.approx(pair) for pair in scales] == [(min(grids), max(grids))]
    for axes, one in zip(maps, outcome.numbers["runs"].values(), strict=True):
        drawn = next(c for c in axes.collections if hasattr(c, "levels"))
        inside = [level for level in levels(min(grids), max(grids)) if one["least"] < level < one["most"]]
        assert list(drawn.levels) == pytest.approx(inside)


@pytest.mark.parametrize("grid", [[[2.0] * 3] * 3, [[None, None, 1.0], [1.0, 1.0, 2.0], [4.0, 3.0, None]]])
def test_a_flat_map_and_one_with_holes_are_drawn(grid, tmp_path):
    whole = [value for row in grid for value in row if value is not None]
    found = {"a": {"loss": grid[1][1], "least": min(whole), "most": max(whole), "grid": grid}}
    [picture] = draw_maps(found, [-1.0, 0.0, 1.0])
    figure = Figure()
    picture.draw(figure)
    figure.savefig(tmp_path / "x.png")


def test_without_any_finite_loss_there_is_no_sheet():
    assert (
        draw_maps({"a": {"loss": None, "least": None, "most": None, "grid": [[None] * 3] * 3}}, [-1.0, 0.0, 1.0]) == []
    )


@pytest.mark.full
def test_the_same_runs_and_settings_give_the_same_bytes(runs, outcome, tmp_path):
    for name, one in (("one", outcome), ("two", SMALL.study(runs))):
        write_outcome(one, "landscape", SMALL, {}, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert {"landscape.png", "landscape.svg", "loss-landscape-of-a.csv", "loss-profile.csv", "outcome.json"} <= set(
        files
    )
    assert [(tmp_path / "one" / f).read_bytes() for f in files] == [(tmp_path / "two" / f).read_bytes() for f in files]
    other = Landscape(samples=30, points=5, span=0.5, seed=1).study(runs)
    assert other.numbers["runs"]["a"]["grid"] != outcome.numbers["runs"]["a"]["grid"]
    json.dumps(outcome.numbers, allow_nan=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"points": 4}, "landscape.points is 4"),
        ({"points": 1}, "landscape.points is 1"),
        ({"span": 0.0}, "landscape.span is 0"),
        ({"samples": 0}, "samples is 0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Landscape(**settings)
