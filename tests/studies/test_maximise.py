"""Activation maximisation: what climbs, the spectrum that stands still, the ways to keep pixels smooth, kernels,
refusals.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata.common.errors import ConfigError, LayoutError
from fedstrata.config.config import Config
from fedstrata.data.federation import Federation
from fedstrata.runs.run import run as train
from fedstrata.studies import ascent, find
from fedstrata.studies.ascent import Ascent, Probe, Regularisation, ascend_pixels, blurred, cropped, total_variation
from fedstrata.studies.fourier import crops, image_of, magnitude, odd, random_phase
from fedstrata.studies.maximise import Maximise, decreased, default_layers, first_kernels, weight_of
from fedstrata.studies.pixels import Pixels
from helpers import lab
from helpers.trained_runs import ended

PLAIN = Regularisation(tv=0.0, blur=0.0, crop="none", share=0.1, every=4, decay=0.0)
RAW = Pixels(torch.zeros(3, 1, 1), torch.ones(3, 1, 1))


class Colours(nn.Module):
    """Two convolutions, the second with a norm, and a head: for 3x8x8 images."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.second(torch.relu(self.first(x))))).mean((2, 3)))


def finished(seed=3, **settings):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (12, 3, 8, 8), generator=generator, dtype=torch.uint8)
    x[:, :, :4] //= 2
    y = torch.arange(12) % 3
    data = Federation.of(x.numpy(), y.numpy(), client=np.repeat([0, 1], 6), test=(x.numpy(), y.numpy()))
    return ended(lab.parts("fedavg", (data, lab.filled(Colours(), seed)), rounds=1, cohort=2, **settings))


@pytest.fixture(scope="module")
def run():
    return finished()


def outcome(text, **runs):
    return find(text)[1].study(runs)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# ---- formulas


def test_total_variation_is_the_published_sum_written_out():
    x = torch.rand(2, 3, 4, 5, generator=seeded())
    found = total_variation(x)
    for image, value in zip(x.double().numpy(), found.tolist(), strict=True):
        down = sum((image[c, i + 1, j] - image[c, i, j]) ** 2 for c in range(3) for i in range(3) for j in range(5))
        across = sum((image[c, i, j + 1] - image[c, i, j]) ** 2 for c in range(3) for i in range(4) for j in range(4))
        assert value == pytest.approx(2 * (down / (3 * 3 * 5) + across / (3 * 4 * 4)), rel=1e-5)
    assert total_variation(torch.tensor([[[[0.0, 1.0], [3.0, 0.0]]]])).item() == 2 * ((9 + 1) / 2 + (1 + 9) / 2)


def test_a_crop_by_value_sets_the_least_numbers_to_zero_and_keeps_the_others():
    x = torch.tensor([[[[-5.0, 1.0, 3.0, -2.0, 4.0]]]])
    assert cropped(x, "value", 0.5).flatten().tolist() == [-5.0, 0.0, 3.0, 0.0, 4.0]


def test_a_crop_by_norm_sets_whole_pixels_to_zero():
    x = torch.zeros(1, 2, 1, 3)
    x[0, :, 0] = torch.tensor([[3.0, 0.1, 2.0], [0.1, 2.5, 2.0]])  # norms 3.0, 2.5, 2.8
    assert cropped(x, "norm", 0.4)[0, :, 0].tolist() == [[3.0, 0.0, 2.0], [pytest.approx(0.1), 0.0, 2.0]]


def test_a_blur_keeps_flat_images_and_spreads_a_point_as_a_gaussian():
    flat = torch.full((1, 1, 9, 9), 0.3)
    assert torch.allclose(blurred(flat, 1.0), flat, atol=1e-6)
    point = torch.zeros(1, 2, 15, 15)
    point[0, 0, 7, 7] = 1
    spread = blurred(point, 1.0)[0]
    assert float(spread[0, 7, 8] / spread[0, 7, 7]) == pytest.approx(math.exp(-0.5), rel=1e-5)
    assert float(spread[1].abs().max()) == 0


# ---- pixels


def linear():
    """A model whose layer is one convolution over the whole image."""
    layer = nn.Conv2d(3, 2, 4)
    return lab.filled(nn.Sequential(layer, nn.Flatten()), 0).eval(), layer


def test_adam_in_pixels_is_the_written_out_rule():
    model, layer = linear()
    start = torch.randn(2, 3, 4, 4, generator=seeded())
    found = ascend_pixels(
        Probe(model, layer, [0, 1]), start, RAW, 5, 0.1, Regularisation(0.5, 0.0, "none", 0.1, 4, 0.01)
    )
    for k in range(2):
        x, m, v = start[k].double().numpy(), np.zeros((3, 4, 4)), np.zeros((3, 4, 4))
        weight = layer.weight[k].detach().double().numpy()
        for t in range(1, 6):
            slope = -weight + 0.01 * x
            down, across = np.diff(x, axis=1), np.diff(x, axis=2)
            slope[:, 1:] += 0.5 * 2 * 2 * down / down.size
            slope[:, :-1] -= 0.5 * 2 * 2 * down / down.size
            slope[:, :, 1:] += 0.5 * 2 * 2 * across / across.size
            slope[:, :, :-1] -= 0.5 * 2 * 2 * across / across.size
            m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
            x = x - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        assert np.allclose(found.raw[k].numpy(), x, atol=1e-5)


@pytest.mark.parametrize("sigma", [1e-300, 0.01, 17, 1e9])
def test_a_blur_that_no_kernel_of_pixels_can_hold_is_refused(sigma):
    with pytest.raises(ConfigError, match=r"the sigma of a Gaussian in pixels, 0 for none or from 0.05 to 16"):
        Maximise(blur=sigma)


def test_crop_and_blur_write_into_the_image_that_adam_moves():
    model, layer = linear()
    start = torch.randn(1, 3, 4, 4, generator=seeded())
    ways = Regularisation(0.0, 0.0, "value", 0.5, 2, 0.0)
    found = ascend_pixels(Probe(model, layer, [0]), start, RAW, 4, 0.1, ways).raw
    assert int((found == 0).sum()) == 24, "the crop of the last step is in what comes out"
    first = ascend_pixels(Probe(model, layer, [0]), start, RAW, 2, 0.1, ways).raw
    moved = ascend_pixels(Probe(model, layer, [0]), start, RAW, 3, 0.1, ways).raw
    assert torch.allclose((moved - first).abs(), torch.full_like(first, 0.1), atol=1e-3), (
        "the third step starts from the cropped image"
    )


@pytest.mark.parametrize("layers", ["first", "second", "head"])
def test_activations_rise_over_the_start_in_every_layer(run, layers):
    found = outcome(f"maximise(steps=60, channels=[0, 1, 2], layers={layers}, tv=0.1)", one=run).numbers["one"][layers]
    assert all(last > first for first, last in zip(found["first"], found["last"], strict=True))


def test_an_activation_is_the_layer_s_raw_output_before_its_norm(run):
    model = run.module()
    probe = Probe(model, model.get_submodule("second"), [0, 5])
    x = torch.rand(2, 3, 8, 8, generator=seeded())
    raw = model.second(torch.relu(model.first(x)))
    assert torch.equal(probe.activation(x), torch.stack([raw[0, 0].mean(), raw[1, 5].mean()]))


def test_images_do_not_touch_each_other(run):
    both = outcome("maximise(steps=5, channels=[1, 3], layers=second)", one=run).numbers["one"]["second"]["last"]
    alone = outcome("maximise(steps=5, channels=3, layers=second)", one=run).numbers["one"]["second"]["last"]
    assert both[1] == pytest.approx(alone[0], abs=1e-5)


def test_pictures_are_cut_to_pixels_and_their_own_activation_is_told(run, monkeypatch):
    kept = []
    monkeypatch.setattr(
        "fedstrata.studies.maximise.ascend_pixels", lambda *a: kept.append(ascent.ascend_pixels(*a)) or kept[-1]
    )
    found = outcome("maximise(steps=40, channels=[0, 1], layers=second, tv=0)", one=run).numbers["one"]["second"]
    assert float(kept[0].raw.max()) > 1
    assert (float(kept[0].pictures.min()), float(kept[0].pictures.max())) == (0.0, 1.0)
    assert found["shown"] != found["last"]


# ---- a fixed magnitude


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 7, 7), (2, 6, 9)])
def test_images_have_exactly_the_prescribed_magnitude_whatever_the_phase(shape):
    spectrum = 3 * torch.rand(shape, generator=seeded()).double()
    spectrum = (spectrum + spectrum.flip(-2, -1).roll((1, 1), (-2, -1))) / 2  # as that of real images
    phase = random_phase(torch.Size((4, *shape)), seeded(1)).double()
    image = image_of(spectrum, phase)
    assert torch.allclose(torch.fft.fft2(image).abs(), spectrum.expand(4, *shape), atol=1e-12)
    assert torch.allclose(torch.fft.fft2(image[0]).angle().cos(), odd(phase)[0].cos(), atol=1e-9)


def test_the_magnitude_is_the_mean_over_images_by_channel():
    images = torch.rand(5, 3, 6, 6, generator=seeded())
    wanted = np.abs(np.fft.fft2(images.double().numpy())).mean(0)
    assert np.allclose(magnitude([images[:2], images[2:]]).numpy(), wanted, rtol=1e-5)


def test_maco_s_images_have_the_training_images_magnitude_before_they_are_cut(run, monkeypatch):
    kept = []
    monkeypatch.setattr(
        "fedstrata.studies.maximise.ascend_phase", lambda *a: kept.append(ascent.ascend_phase(*a)) or kept[-1]
    )
    outcome("maximise(form=maco, steps=4, crops=2, channels=[0, 1], layers=second)", one=run)
    train = run.federation.train
    wanted = np.abs(np.fft.fft2(train.x.double().numpy() / 255)).mean(0)
    assert np.allclose(np.abs(np.fft.fft2(kept[0].raw.double().numpy())), wanted, rtol=1e-4, atol=1e-4)


def test_maco_raises_activations_over_random_phases(run):
    found = outcome(
        "maximise(form=maco, steps=60, crops=4, channels=[0, 1, 2], layers=second, noise=0, lr=0.1)", one=run
    ).numbers["one"]["second"]
    assert sum(found["last"]) > sum(found["first"])


def test_a_crop_of_the_whole_image_is_the_image_and_smaller_ones_are_stretched(monkeypatch):
    image = torch.rand(2, 3, 8, 8, generator=seeded())
    monkeypatch.setattr(torch, "randn", lambda *shape, generator: torch.zeros(shape))
    assert torch.allclose(crops(image, 2, 1.0, seeded()), image.repeat(2, 1, 1, 1), atol=1e-5)
    ramp = torch.linspace(0, 7, 8).expand(1, 1, 8, 8)
    half = crops(ramp, 1, 0.5, seeded())[0, 0, 4]
    assert half.tolist() == pytest.approx([1.75 + 0.5 * k for k in range(8)], abs=1e-4), (
        "the middle four columns over eight places"
    )


def test_all_images_are_cut_alike():
    image = torch.rand(1, 3, 8, 8, generator=seeded())
    found = crops(image.repeat(2, 1, 1, 1), 3, 0.5, seeded(2)).reshape(3, 2, 3, 8, 8)
    assert torch.equal(found[:, 0], found[:, 1])
    assert not torch.equal(found[0], found[1])


# ---- what is shown


def test_runs_stand_side_by_side_a_sheet_a_layer(run):
    told = outcome("maximise(steps=2, channels=[0, 5])", one=run, two=finished(seed=4))
    assert [p.name for p in told.pictures] == [
        "images-for-first-pixels",
        "images-for-second-pixels",
        "images-for-head-pixels",
        KERNELS,
    ]
    assert [[row[0].text for row in p.table.rows] for p in told.pictures[:2]] == [["one", "two"]] * 2
    assert told.numbers["one"]["first"]["channels"] == [0], "the first layer has four channels"
    assert told.numbers["one"]["second"]["channels"] == [0, 5]
    assert told.numbers["one"]["second"]["first"] != told.numbers["two"]["second"]["first"]


KERNELS = "kernels-of-the-first-convolution"


def test_kernels_are_shown_by_colour_each_filter_over_its_own_largest_number(run):
    found, weight = first_kernels(run, 2), run.served["first.weight"][:2]
    assert found.shape == (2, 3, 3, 3)
    for k in range(2):
        assert torch.allclose((found[k] - 0.5) * 2 * weight[k].abs().max(), weight[k], atol=1e-6)
        assert float((found[k] - 0.5).abs().max()) == pytest.approx(0.5)
    picture = outcome("maximise(steps=1, channels=0)", one=run).pictures[-1]
    assert [row[0].text for row in picture.table.rows] == ["red", "green", "blue"]
    assert len(picture.table.heads) == 6, "five filters, of which the layer has four"
    assert KERNELS not in [p.name for p in outcome("maximise(steps=1, channels=0, kernels=0)", one=run).pictures]


def test_default_layers_are_the_first_and_last_convolution_and_the_head(run):
    layout = run.engine.parts.setup.layout
    assert default_layers(layout, layout.names()) == ["first", "second", "head"]
    assert [weight_of(layout, name) for name in default_layers(layout, layout.names())] == [
        "first.weight",
        "second.weight",
        "head.weight",
    ]


def test_channels_that_the_image_excites_less_than_the_start_are_named():
    climb = Ascent(
        torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 2.0, 3.5]), torch.zeros(3), torch.zeros(3, 1, 2, 2)
    )
    assert decreased({"run": {"head": ((0, 4, 7), climb)}}) == []
    (note,) = decreased({"run": {"head": ((0, 4, 7), replace(climb, last=torch.tensor([0.5, 2.5, 2.9])))}})
    assert note.startswith("run, head: the optimised image excites channel 0, 7 less than the start")


def test_a_prior_that_outweighs_the_activation_is_told(run):
    assert (
        "less than the start;" in outcome("maximise(steps=3, tv=1000000.0, lr=0.5, channels=[0, 1])", one=run).notes[0]
    )


@pytest.mark.parametrize("form", ["pixels", "maco"])
def test_the_same_study_gives_the_same_numbers(run, form):
    text = f"maximise(form={form}, steps=3, crops=2, channels=[0, 1])"
    assert json.dumps(outcome(text, one=run).numbers) == json.dumps(outcome(text, one=run).numbers)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("maximise(channels=[])", "numbers of channels"),
        ("maximise(channels=-1)", "numbers of channels"),
        ("maximise(steps=0)", "at least 1"),
        ("maximise(lr=0)", "above 0"),
        ("maximise(share=1)", "a share"),
        ("maximise(boxes=0.5)", "first and the last"),
        ("maximise(tv=-1)", "at least 0"),
        ("maximise(layers=first, channels=9)", "layer first of one has 4"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(run, text, said):
    with pytest.raises(ConfigError, match=said):
        outcome(text, one=run)


def test_a_layer_that_is_not_there_is_refused_with_those_that_are(run):
    with pytest.raises(LayoutError, match="first, second, head"):
        outcome("maximise(layers=third)", one=run)


def test_norms_that_look_at_the_batch_are_refused():
    with pytest.raises(ConfigError, match="would mix the images"):
        outcome("maximise(steps=1)", one=finished(bn="batch"))


def test_rows_of_numbers_are_no_images():
    with pytest.raises(ConfigError, match="needs images"):
        Maximise().study({"one": ended(lab.parts("fedavg", "layer", rounds=1))})


def test_the_command_writes_sheets(call, tmp_path):
    common = {"out": str(tmp_path), "rounds": 1, "clients": 4, "executor": "loop", "local.epochs": 1}
    folder = train(Config(model="dlg_lenet(activation=tanh, spread=0)", name="one", **common)).folder
    code, out, err = call("study", "maximise(steps=2, channels=[0, 1])", folder, "--out", tmp_path / "study", "--json")
    assert code == 0, err
    assert json.loads(out)["study"] == "maximise"
    names = {file.name for file in (tmp_path / "study").iterdir()}
    assert {"outcome.json", "activation-maximisation.csv", "images-for-head-pixels.png", f"{KERNELS}.png"} <= names
