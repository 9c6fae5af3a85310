"""Studies of runs whose network grows: layers of other stages are left out, settings are no layers, and what is told is
of the network in use.
"""

import json
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch

import fedstrata
from fedstrata.client.step_cost import whole
from fedstrata.common.errors import ConfigError
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece
from fedstrata.inference.finished_run import open_run
from fedstrata.studies import find, inversion
from fedstrata.studies.active_groups import parameters_used_by
from fedstrata.studies.directions import filterwise
from fedstrata.studies.masks import batches, estimate
from fedstrata.studies.memory import WHOLE, batch_of, measured
from fedstrata.studies.path import Path
from fedstrata.studies.retraining import pooled, retrain
from fedstrata.studies.surface import surfaces
from helpers import lab
from helpers.networks import pictures
from helpers.trained_runs import ended, toy

LEFT, DROPPED, LATE = "progfed.left", ["progfed.0"], ["second", "head"]
STAGES = {
    "last": ("progfed(each=1)", DROPPED, ["first", *LATE]),
    "first": ("progfed(each=100)", LATE, ["first", *DROPPED]),
}
"""By the stage in which a run ends: the method, the layer groups that its network does not use, and those that it
does.
"""


@pytest.fixture(scope="module", params=STAGES)
def grown(request):
    """(run, groups that are not used, groups that are)."""
    torch.set_num_threads(1)
    text, unused, used = STAGES[request.param]
    return toy(text, rounds=4), unused, used


@pytest.fixture(scope="module", params=STAGES)
def seen(request, tmp_path_factory):
    """(run on images, groups that are not used, groups that are)."""
    torch.set_num_threads(1)
    text, _, _ = STAGES[request.param]
    folder = tmp_path_factory.mktemp("seen")
    settings = {
        "model": "mlp(hidden=[6,5])",
        "rounds": 3,
        "clients": 4,
        "cohort": 2,
        "executor": "loop",
        "local": {"epochs": 1},
    }
    fedstrata.run(out=str(folder), name="run", method=text, **settings)
    late = ["layers.1.linear", "head"]
    unused, used = (
        (DROPPED, ["layers.0.linear", *late]) if request.param == "last" else (late, ["layers.0.linear", *DROPPED])
    )
    return open_run(folder / "run"), unused, used


def said(unused):
    return f"left out, as the network does not use them: {', '.join(unused)}."


def look(text, run):
    """What a study says of a run, as numbers that are JSON, and its notes."""
    found = find(text)[1].study({"run": run})
    json.dumps(found.numbers, allow_nan=False)
    assert LEFT not in json.dumps(found.numbers)
    assert all(LEFT not in panel.series and LEFT not in panel.x for panel in found.panels)
    return found


# ---- the loss


def test_sharpness_is_of_the_groups_that_the_network_uses(grown):
    run, unused, used = grown
    found = look("sharpness(samples=20, iterations=3, directions=1)", run)
    assert list(found.numbers["runs"]["run"]["groups"]) == used
    assert f"run: {said(unused)}" in found.notes
    assert all(one["value"] != 0 for one in found.numbers["runs"]["run"]["groups"].values())


@pytest.mark.parametrize("vectors", ["still", "scaled"])
def test_no_direction_leads_to_another_stage(grown, vectors):
    run = grown[0]
    layout = run.engine.parts.setup.layout
    moved = filterwise(torch.ones(layout.spec.total), torch.ones(layout.spec.total), layout, vectors)
    ((a, b),) = layout.spec.runs([LEFT])
    assert moved[a:b].tolist() == [0.0]
    assert bool(moved.any())


def test_a_layer_that_is_not_used_has_no_part_in_the_loss(grown):
    run, unused, _ = grown
    surface = surfaces({"run": run}, "train", 20, 20, 0)["run"]
    layout = surface.layout
    for group in unused:
        for a, b in layout.spec.runs(layout.groups[group].names):
            elsewhere = surface.centre.clone()
            elsewhere[a:b] += 5.0
            assert surface.loss(elsewhere) == surface.loss(surface.centre)
            assert not bool(surface.gradient()[a:b].any())


def test_runs_that_ended_in_different_stages_have_no_path_between_them():
    runs = {"early": toy("progfed(each=2)", rounds=1), "late": toy("progfed(each=2)", rounds=3)}
    with pytest.raises(ConfigError, match="early and late ended in different stages"):
        Path(samples=20, points=3).study(runs)


# ---- training


def test_settling_follows_the_run_and_pools_the_whole_network(grown):
    run, unused, used = grown
    found = look("settling(samples=10, looks=5)", run)
    told = found.numbers["run"]
    assert list(told["settled"]) == list(told["distance"]) == list(told["similarity"]) == used
    assert list(told["pooled"]["settled"]) == ["first", *LATE]
    assert f"run: {said(unused)}" in found.notes
    assert (
        "run: the run grew its network in stages; the pooled training uses the whole network from the start."
        in found.notes
    )
    assert set(found.panels[-1].series) == {"first", *LATE, *used}
    assert not any("last bits" in note for note in found.notes)


def test_the_pooled_training_moves_every_layer_of_the_whole_network_in_every_round():
    parts = lab.parts("progfed(each=1)", cohort=6, rounds=4)
    layout, flats = parts.setup.layout, []
    for engine in retrain(pooled(parts, [54] * 4), 4):
        assert engine.serving.model().integer(LEFT) == 0
        flats.append(engine.server.model.flat.clone())
    for group in ("first", *LATE):
        for a, b in layout.spec.runs(layout.groups[group].names):
            assert all(not torch.equal(x[a:b], z[a:b]) for x, z in pairwise(flats)), group
    plain = list(retrain(pooled(lab.parts("fedavg", cohort=6, rounds=4), [54] * 4), 4))[-1].server.model
    grown = engine.server.model
    assert all(torch.equal(grown[name], value) for name, value in plain.items()), (
        "it is FedAvg's network, trained plainly"
    )


def test_masks_are_of_the_groups_that_the_network_uses_at_that_moment(grown):
    run, unused, used = grown
    found = look("masks(samples=4)", run)
    start, end = found.numbers["run"]["start"], found.numbers["run"]["end"]
    assert list(start["k"]) == ["first", *DROPPED]
    assert list(end["k"]) == list(end["share"]) == used
    assert f"run, start: {said(LATE)}" in found.notes
    assert f"run, end: {said(unused)}" in found.notes
    assert sum(end["share"].values()) == pytest.approx(len(used))


def test_variances_of_a_network_in_an_early_stage_are_over_its_own_numbers(grown):
    run, _, used = grown
    parts, served = run.engine.parts, run.served
    found = estimate(parts.make_worker(), served, batches(parts, 3))
    groups = parts.setup.layout.groups
    assert found.sizes == tuple(groups[g].numel for g in used)
    weighted = sum(found.k[g] * groups[g].numel for g in used)
    assert weighted == pytest.approx(sum(found.sizes)), "the mean of k over numbers is 1"


def test_memory_is_of_the_whole_network_whatever_stage_a_run_ended_in(grown):
    run = grown[0]
    found = look("memory", run)
    told, parts = found.numbers["run"], run.engine.parts
    assert told == find("memory")[1].study({"run": toy("progfed(each=2)", rounds=4)}).numbers["run"]
    for kind in ("predicted", "counted", "measured"):
        assert list(told[kind]) == ["first", *LATE, WHOLE]
    kit = parts.make_worker()
    with whole(kit):
        assert told["measured"]["head"] == measured(
            kit, batch_of(parts), frozenset(parts.setup.layout.groups["head"].names)
        )
    assert f"run: {said(DROPPED)}" in found.notes
    assert any("the network grows over the run" in note for note in found.notes)


# ---- images


@dataclass(frozen=True)
class Signs(Piece):
    """Signs alone are sent."""

    def compress(self, delta, ctx):
        return delta.new(delta.flat.sign())


def test_inversion_sees_what_the_network_uses(seen, monkeypatch):
    run, unused, used = seen
    monkeypatch.setattr(inversion, "method", lambda _: Method() + Signs())
    found = look("inversion(images=1, steps=1, codec=signs)", run)
    views = found.numbers["run"]
    assert [name for name in views if name.startswith("only ")] == [f"only {group}" for group in used]
    numbers = sum(run.engine.parts.setup.layout.groups[group].numel for group in used)
    assert views["full"]["numbers"] == views["sign"]["numbers"] == views["codec signs"]["numbers"] == numbers
    assert said(unused) in found.notes


def test_inversion_of_the_start_is_of_the_first_stage(seen):
    views = look("inversion(images=1, steps=1, at=start)", seen[0]).numbers["run"]
    assert [name for name in views if name.startswith("only ")] == ["only layers.0.linear", "only progfed.0"]


def test_a_group_of_which_nothing_is_sent_cannot_be_inverted(seen):
    run, unused, _ = seen
    with pytest.raises(ConfigError, match=f"inversion.visible has {unused[0]}, which this network does not use"):
        find(f'inversion(images=1, steps=1, visible=["{unused[0]}"])')[1].study({"run": run})


@pytest.mark.parametrize("form", ["pixels", "maco"])
def test_images_are_found_for_the_head_that_is_in_use(seen, form):
    run, unused, used = seen
    found = look(f"maximise(steps=2, channels=[0, 3], form={form}, crops=2, spectrum=5)", run)
    assert list(found.numbers["run"]) == [used[-1]]
    assert f"run: {said(unused)}" in found.notes


def test_activations_of_a_network_that_grows_are_those_of_its_own_output(seen):
    """The head's raw output is what the network puts out, so that a start is scored as the plain module scores it."""
    run, _, used = seen
    found = look("maximise(steps=1, channels=[0, 3])", run).numbers["run"][used[-1]]
    from fedstrata.common import random_streams  # the start is drawn from the library's own stream  # noqa: PLC0415

    start = torch.stack(
        [
            torch.randn(run.federation.task.shape, generator=random_streams.torch_stream(0, "maximise", c))
            for c in (0, 3)
        ]
    )
    with torch.no_grad():
        wanted = run.module()(start)[[0, 1], [0, 3]]
    assert found["first"] == pytest.approx(wanted.tolist(), abs=2e-6)


def test_a_layer_that_is_not_used_cannot_be_excited(seen):
    run, unused, _ = seen
    with pytest.raises(
        ConfigError, match=f"maximise.layers has {unused[0]}, which the final network of run does not use"
    ):
        find(f'maximise(steps=1, layers=["{unused[0]}"])')[1].study({"run": run})


def test_layers_inside_a_network_that_a_method_changes_can_be_excited(seen):
    found = look('maximise(steps=2, channels=[0], layers=["layers.0.linear"])', seen[0])
    assert list(found.numbers["run"]) == ["layers.0.linear"]


# ---- which layers are used


@pytest.mark.parametrize("text", ["fedavg", "fedphoenix", "fedpart(warmup=1, repeat=1)"])
def test_a_network_that_does_not_grow_uses_all_it_has(text):
    run = toy(text, rounds=1)
    assert parameters_used_by(run) == run.engine.parts.setup.layout.parameters


def test_a_residual_network_uses_the_blocks_up_to_its_stage():
    run = ended(_residual())
    layout = run.engine.parts.setup.layout
    found = {layout.entries[name].group for name in parameters_used_by(run)}
    assert "progfed.0" in found
    assert "head" not in {
        layout.entries[name].role for name in parameters_used_by(run) if not name.startswith("progfed.")
    }
    assert len(found) < len(layout.groups) / 2
    assert np.isfinite(look("sharpness(samples=4, iterations=2, directions=1)", run).numbers["runs"]["run"]["loss"])


def _residual():
    from fedstrata.config.config import Config  # noqa: PLC0415
    from fedstrata.engine.assembly import assemble  # noqa: PLC0415

    federation = pictures()
    settings = {"local.epochs": None, "local.steps": 1}
    return assemble(
        Config(
            model="resnet8", method="progfed(each=9)", rounds=1, cohort=federation.clients, executor="loop", **settings
        ),
        federation,
    )
