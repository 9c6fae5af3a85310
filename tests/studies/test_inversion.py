"""Gradient inversion: scores against closed forms, attacks that succeed on a small smooth network, what is visible,
refusals.
"""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata
from fedstrata.common.errors import ConfigError, LayoutError
from fedstrata.config.config import Config
from fedstrata.core.chain import Method
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece
from fedstrata.data.federation import Federation
from fedstrata.runs.run import run as train
from fedstrata.studies import find, inversion
from fedstrata.studies.attacks import Guess, Target, dlg, inverting, label_of, variation
from fedstrata.studies.inversion import GREY, Inversion, encoded, gradients, matched
from fedstrata.studies.pixels import Pixels, pixels_of, psnr, ssim
from helpers import lab
from helpers.trained_runs import ended


class Smooth(nn.Module):
    """Two convolutions with an activation without kinks, and a head: for 1x8x8 images."""

    def __init__(self, classes=4):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.head = nn.Linear(6 * 16, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))).flatten(1))


def drawn(count, size=8, channels=1, seed=0):
    """uint8 images with something to see: a bright rectangle on a slope."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.linspace(40, 90, size).expand(count, channels, size, size).clone()
    for image in images:
        top, left = (int(k) for k in torch.randint(0, size // 2, (2,), generator=generator))
        image[:, top : top + 3, left : left + 4] = 130 + 100 * torch.rand(channels, 1, 1, generator=generator)
    return images.to(torch.uint8)


def finished(rounds=1, classes=4, **settings):
    """A finished run on small images, six a client."""
    x, y = drawn(12), torch.arange(12) % classes
    data = Federation.of(x.numpy(), y.numpy(), client=np.repeat([0, 1], 6), test=(x.numpy(), y.numpy()))
    return ended(lab.parts("fedavg", (data, lab.filled(Smooth(classes), 3)), rounds=rounds, cohort=2, **settings))


@pytest.fixture(scope="module")
def run():
    return finished()


def outcome(run, text):
    return find(text)[1].study({"one": run})


# ---- scores


def test_psnr_is_ten_times_the_logarithm_of_the_mean_squared_error():
    truth = torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(0)) / 2
    assert psnr(truth + 0.1, truth) == pytest.approx(20.0, abs=1e-4)
    error = torch.linspace(-0.3, 0.4, 75).reshape(3, 5, 5)
    wanted = -10 * math.log10(np.mean(error.numpy().astype(np.float64) ** 2))
    assert psnr(truth + error, truth) == pytest.approx(wanted, abs=1e-3)


def test_equal_images_have_120_db_and_a_similarity_of_one():
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert (psnr(image, image), ssim(image, image)) == (120.0, 1.0)


@pytest.mark.parametrize(("u", "v"), [(0.2, 0.7), (0.0, 1.0), (0.5, 0.51)])
def test_similarity_of_two_flat_images_is_the_term_of_brightness(u, v):
    flat = torch.ones(1, 16, 16)
    assert ssim(u * flat, v * flat) == pytest.approx((2 * u * v + 1e-4) / (u * u + v * v + 1e-4), abs=2e-6)


def reference(a, b):
    """Wang et al. 2004, eq. 13, window by window in float64."""
    at = np.arange(11) - 5.0
    one = np.exp(-(at**2) / (2 * 1.5**2))
    w = np.outer(one, one) / one.sum() ** 2
    found = []
    for x, y in zip(a.double().numpy(), b.double().numpy(), strict=True):
        for i in range(x.shape[0] - 10):
            for j in range(x.shape[1] - 10):
                p, q = x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11]
                mp, mq = (w * p).sum(), (w * q).sum()
                vp, vq, pq = (w * (p - mp) ** 2).sum(), (w * (q - mq) ** 2).sum(), (w * (p - mp) * (q - mq)).sum()
                found.append((2 * mp * mq + 1e-4) * (2 * pq + 9e-4) / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return np.mean(found)


def test_similarity_is_the_published_formula_window_by_window():
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(2, 14, 13, generator=generator)
    b = (a + 0.2 * torch.randn(2, 14, 13, generator=generator)).clamp(0, 1)
    assert ssim(a, b) == pytest.approx(reference(a, b), abs=2e-6)
    assert ssim(a, b) == ssim(b, a)
    assert ssim(a, 1 - a) < 0 < ssim(a, b) < 1


def test_images_smaller_than_the_window_are_compared_by_a_smaller_one():
    image = torch.rand(1, 6, 8, generator=torch.Generator().manual_seed(0))
    assert ssim(image, image) == 1.0
    assert ssim(image, image.flip(2)) < 1


def test_total_variation_is_the_mean_absolute_difference_of_neighbours_down_plus_across():
    x = torch.tensor([[[[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]]]])
    assert float(variation(x)) == pytest.approx((2 + 1 + 1) / 3 + (1 + 2 + 0 + 0) / 4)


# ---- labels


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("label", range(5))
def test_the_head_s_gradient_tells_the_label_whatever_the_signs_of_its_features(bias, label):
    generator = torch.Generator().manual_seed(label)
    weight, shift = torch.randn(5, 7, generator=generator, requires_grad=True), torch.zeros(5, requires_grad=True)
    features = torch.randn(1, 7, generator=generator)
    loss = nn.functional.cross_entropy(features @ weight.T + shift, torch.tensor([label]))
    gw, gb = torch.autograd.grad(loss, [weight, shift])
    assert label_of(gw, gb if bias else None).tolist() == [label]


def test_inverting_gradients_finds_a_label_at_once_where_the_head_is_visible(run):
    found = outcome(run, "inversion(attack=ig, label=unknown, images=4, steps=1, visible=[full, head, first])").numbers[
        "one"
    ]
    assert (found["full"]["labels"], found["only head"]["labels"]) == (1.0, 1.0)
    assert found["only first"]["labels"] < 1, "soft labels that have hardly moved"


def test_dlg_finds_a_label_beside_the_image(run):
    found = outcome(run, "inversion(label=unknown, images=1, steps=40, visible=full)").numbers["one"]["full"]
    assert found["labels"] == 1.0
    assert found["psnr"] > 20


# ---- attacks


def test_dlg_succeeds_on_the_full_update_of_a_small_smooth_network(run):
    told = outcome(run, "inversion(images=2, steps=30, visible=[full, sign])")
    full = told.numbers["one"]["full"]
    assert full["psnr"] > 25
    assert full["ssim"] > 0.4 + told.numbers["one"][GREY]["ssim"]
    assert full["psnr"] > told.numbers["one"][GREY]["psnr"] + 8
    assert "succeeds" in told.notes[0]


def test_inverting_gradients_succeeds_on_the_full_update_of_a_small_smooth_network(run):
    full = outcome(run, "inversion(attack=ig, images=1, steps=400, visible=full)").numbers["one"]["full"]
    assert full["psnr"] > 20


def target(direction=False, labels=True):
    torch.manual_seed(0)
    model = lab.filled(Smooth(), 3).eval()
    pixels = Pixels(torch.full((1, 1, 1), 0.4), torch.full((1, 1, 1), 0.25))
    truth = drawn(1).float() / 255
    y = torch.tensor([2])
    seen = torch.autograd.grad(nn.functional.cross_entropy(model(pixels.normal(truth)), y), list(model.parameters()))
    return (
        Target(model, list(model.parameters()), seen, direction, pixels, truth.shape, 4, y if labels else None),
        truth,
    )


@pytest.mark.parametrize("direction", [True, False])
def test_the_distance_is_zero_at_the_image_itself_and_one_sided_elsewhere(direction):
    known, truth = target(direction)
    at = known.distance(known.gradients(known.pixels.normal(truth), known.labels)).detach()
    away = known.distance(known.gradients(known.pixels.normal(1 - truth), known.labels)).detach()
    assert float(at) == pytest.approx(0, abs=1e-6)
    assert float(away) > 0.01


def test_a_direction_counts_without_its_length():
    known, truth = target(direction=True)
    found = [g.detach() for g in known.gradients(known.pixels.normal(1 - truth), known.labels)]
    assert float(known.distance([3 * g for g in found])) == pytest.approx(float(known.distance(found)), rel=1e-5)
    assert float(known.cosine_distance([3 * g for g in found])) == pytest.approx(
        float(known.cosine_distance(found)), rel=1e-5
    )


def test_all_that_is_told_of_iterates_lies_inside_pixels():
    known, _ = target()
    for attack in (lambda g, guess: dlg(known, g, 3, guess), lambda g, guess: inverting(known, g, 3, guess, 0.0)):
        iterates = []
        attack(torch.Generator().manual_seed(0), Guess(iterates.append))
        restored = known.pixels.restore(torch.cat(iterates))
        assert len(iterates) == 3
        assert -1e-6 <= float(restored.min()) <= float(restored.max()) <= 1 + 1e-6


def test_of_several_attempts_the_one_with_the_least_distance_is_kept(monkeypatch):
    known, truth = target()
    losses = iter([0.5, 0.1, 0.3])

    def attack(target, generator, steps, guess):
        loss = next(losses)
        guess.update(target.pixels.normal(torch.full(target.shape, loss)), target.labels, loss, target.pixels)

    monkeypatch.setattr(inversion, "dlg", attack)
    found = Inversion(restarts=3)._invert(known, truth, known.labels, 0)
    assert torch.allclose(found[0].image, torch.tensor(0.1))


def test_an_attack_that_leaves_all_numbers_is_told_as_grey():
    known, truth = target()
    with torch.no_grad():
        known.parameters[0].fill_(float("nan"))
    found = Inversion(steps=1)._invert(known, truth, known.labels, 0)
    assert torch.equal(found[0].image, torch.full_like(truth[0], 0.5))


# ---- what is visible


def views(run, text="inversion(images=1)"):
    study = find(text)[1]
    model, held = inversion.model_of(run, "end"), run.federation.training(0)[:1]
    x, y = run.federation.train.take(held), run.federation.train.y[held]
    return study._views(run, model, x, y), gradients(model, run.engine.parts.setup.layout, x, y)


def test_the_full_gradient_is_the_run_s_own(run):
    _, gradient = views(run)
    held = run.federation.training(0)[:1]
    kit = run.engine.worker
    wanted, _ = kit.gradient(
        kit.plain_loss,
        run.served,
        fedstrata.core.network.Batch(run.federation.train.take(held), run.federation.train.y[held]),
    )
    assert torch.allclose(Params.of(gradient).flat, wanted.flat, atol=1e-6)


def test_a_layer_group_shows_its_own_gradient_and_nothing_else(run):
    found, gradient = views(run)
    groups = run.engine.parts.setup.layout.groups
    assert list(found) == ["full", *(f"only {name}" for name in groups), "sign"]
    for name, group in groups.items():
        assert set(found[f"only {name}"].gradient) == set(group.names)
        assert all(torch.equal(g, gradient[n]) for n, g in found[f"only {name}"].gradient.items())


def test_signs_are_plus_minus_one_or_zero_and_only_their_direction_counts(run):
    found, gradient = views(run)
    assert found["sign"].direction
    assert all(torch.equal(s, torch.sign(gradient[n])) for n, s in found["sign"].gradient.items())


@dataclass(frozen=True)
class Coarse(Piece):
    """Only the largest tenth of an update is sent, in steps of its mean."""

    def upload(self, delta, ctx):
        assert ctx.trained.model is not None
        size = delta.flat.abs()
        kept = torch.where(size >= torch.quantile(size, 0.9), torch.sign(delta.flat) * size.mean(), 0.0)
        return delta.new(kept), {}, ctx.state


def test_a_codec_is_seen_as_its_upload_reversed(run, monkeypatch):
    monkeypatch.setattr(inversion, "method", lambda _: Method() + Coarse())
    _, gradient = views(run)
    seen = encoded(run, "coarse", gradient, 0)
    flat, sent = Params.of(gradient).flat, Params.of(dict(seen.gradient)).flat
    kept = flat.abs() >= torch.quantile(flat.abs(), 0.9)
    assert seen.direction
    assert torch.equal(sent.sign(), torch.where(kept, flat.sign(), 0.0))
    assert list(views(run, "inversion(images=1, codec=coarse)")[0])[-1] == "codec coarse"


def test_a_chain_that_changes_no_upload_is_no_codec(run):
    with pytest.raises(ConfigError, match="none of its methods changes what is sent"):
        outcome(run, "inversion(images=1, steps=1, codec=fedprox)")
    with pytest.raises(ConfigError, match="scaffold needs 'control' of a whole run"):
        outcome(run, "inversion(images=1, steps=1, codec=scaffold)")
    with pytest.raises(ConfigError, match="which sends this update unchanged"):
        outcome(run, "inversion(images=1, steps=1, codec=fedgen)")


def test_images_of_a_batch_are_matched_to_the_true_ones_in_any_order():
    truth = torch.rand(4, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    assert matched(truth[[2, 0, 3, 1]], truth) == [1, 3, 0, 2]


def test_a_batch_of_two_is_attacked_at_once(run):
    found = outcome(run, "inversion(images=4, batch=2, steps=2, visible=full)").numbers["one"]["full"]
    assert len(found["by_image"]) == 4


# ---- what is told


def test_a_failed_attack_on_the_full_update_says_that_other_scores_imply_nothing(run):
    note = outcome(run, "inversion(attack=ig, images=1, steps=1)").notes[0]
    assert "did not succeed" in note
    assert "imply nothing" in note


def test_a_study_without_the_full_update_says_that_it_knows_nothing_of_the_attack(run):
    assert "full update was not attacked" in outcome(run, "inversion(images=1, steps=1, visible=head)").notes[0]


def test_the_table_has_means_over_images_and_the_sheet_every_view(run):
    told = outcome(run, "inversion(images=3, steps=2, visible=[full, groups])")
    full = told.numbers["one"]["full"]
    images = [image["psnr"] for image in full["by_image"]]
    assert full["psnr"] == pytest.approx(np.mean(images), abs=1e-4)
    assert full["psnr_deviation"] == pytest.approx(np.std(images, ddof=1), abs=1e-4)
    assert all(image["best"] >= image["psnr"] - 1e-9 for image in full["by_image"])
    assert told.panels[0].series["full"][0] == full["psnr"]
    assert full["numbers"] == run.engine.parts.parameters
    assert [row[0].text for row in told.pictures[0].table.rows] == [
        "original",
        "full",
        "only first",
        "only second",
        "only head",
    ]


@pytest.mark.parametrize(("label", "shown"), [("known", False), ("unknown", True)])
def test_labels_found_are_shown_where_they_were_not_known(run, label, shown):
    told = outcome(run, f"inversion(attack=ig, images=1, steps=1, visible=full, tv=0.05, label={label})")
    panel = told.panels[0]
    assert ("labels found" in panel.x) is shown
    assert all(len(values) == len(panel.x) for values in panel.series.values())
    assert panel.series["full"][-1] == run.engine.parts.parameters
    assert told.pictures[0].title == "Images found by ig with tv=0.05, PSNR in dB"
    assert told.pictures[0].name == "images-found-by-ig"


def test_the_same_study_gives_the_same_numbers(run):
    text = "inversion(images=2, steps=3)"
    assert json.dumps(outcome(run, text).numbers) == json.dumps(outcome(run, text).numbers)


def test_every_view_of_an_image_is_attacked_from_the_same_start(run, monkeypatch):
    starts = []

    def attack(target, generator, steps, guess):
        starts.append(torch.rand(4, generator=generator))
        guess.update(torch.zeros(target.shape), target.labels, 1.0, target.pixels)

    monkeypatch.setattr(inversion, "dlg", attack)
    outcome(run, "inversion(images=2)")
    first, second = starts[: len(starts) // 2], starts[len(starts) // 2 :]
    assert all(torch.equal(s, first[0]) for s in first)
    assert not torch.equal(first[0], second[0])


def test_the_start_of_a_run_is_its_first_model(run):
    state = inversion.model_of(run, "start").state_dict()
    assert all(torch.equal(state[n], t) for n, t in run.engine.parts.setup.model.views.items())
    assert not torch.equal(inversion.model_of(run, "end").state_dict()["head.weight"], state["head.weight"])


def test_pixels_come_back_from_inputs_exactly_enough_to_be_bytes(run):
    found = pixels_of(run, "it")
    held = run.federation.training(1)
    assert torch.equal(
        (found.restore(run.federation.train.take(held)) * 255).round().to(torch.uint8), run.federation.train.x[held]
    )
    assert torch.allclose(found.normal(found.restore(torch.tensor([[[0.3]]]))), torch.tensor(0.3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("inversion(images=0)", "at least 1"),
        ("inversion(images=8, batch=3)", "a divisor of images=8"),
        ("inversion(steps=0)", "at least 1"),
        ("inversion(restarts=0)", "at least 1"),
        ("inversion(tv=-1)", "at least 0"),
        ("inversion(attack=dgl)", "dlg"),
        ("inversion(images=7, client=1)", "has 6 training images"),
        ("inversion(client=2)", "clients of one are 0 to 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(run, text, said):
    with pytest.raises(ConfigError, match=said):
        outcome(run, text)


def test_a_layer_group_that_is_not_there_is_refused_with_those_that_are(run):
    with pytest.raises(LayoutError, match="first, second, head"):
        outcome(run, "inversion(images=1, steps=1, visible=third)")


def test_rows_of_numbers_are_no_images():
    with pytest.raises(ConfigError, match="needs images"):
        outcome(ended(lab.parts("fedavg", "layer", rounds=1)), "inversion(images=1)")


def test_floats_of_unknown_pixels_are_refused():
    with pytest.raises(ConfigError, match="how they map to pixels"):
        outcome(ended(lab.parts("fedavg", "images", rounds=1)), "inversion(images=1)")


def test_the_command_writes_table_numbers_and_pictures(call, tmp_path):
    common = {"out": str(tmp_path), "rounds": 1, "clients": 4, "executor": "loop", "local.epochs": 1}
    folder = train(Config(model="dlg_lenet(activation=tanh, spread=0)", name="one", **common)).folder
    code, out, err = call("study", "inversion(images=1, steps=1)", folder, "--out", tmp_path / "study", "--json")
    assert code == 0, err
    assert json.loads(out)["study"] == "inversion"
    names = {file.name for file in (tmp_path / "study").iterdir()}
    assert {"outcome.json", "gradient-inversion.csv", "images-found-by-dlg.png", "images-found-by-dlg.svg"} <= names
