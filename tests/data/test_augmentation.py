"""Augmentation: only geometry, only from the uniforms given."""

from __future__ import annotations

import pytest
import torch

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.data import DataSpec, load, parse_augment

DARK = (-2.0, -1.0, -0.5)
ALL = "crop(pad=2) + flip + rotate(degrees=15) + resized_crop(low=0.3)"


def images(b=6, c=3, h=8, w=8):
    return torch.randn(b, c, h, w, generator=torch.Generator().manual_seed(0))


def uniform(b, n):
    return torch.rand(b, n, generator=torch.Generator().manual_seed(1))


def make(text, shape=(3, 8, 8)):
    return parse_augment(text, DARK[: shape[0]], shape)


def test_a_sample_depends_on_its_own_uniforms_only():
    augment, x = make(ALL), images()
    u = uniform(6, augment.draws)
    whole = augment(x, u)
    assert augment.draws == 2 + 1 + 1 + 4
    assert whole.shape == x.shape
    assert torch.equal(whole[[4, 2]], augment(x[[4, 2]], u[[4, 2]]))


def test_the_input_is_not_changed_and_the_process_generator_not_touched():
    augment, x = make(ALL), images()
    before, state = x.clone(), torch.get_rng_state()
    augment(x, uniform(6, augment.draws))
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_flip_mirrors_below_p():
    x = images(2)
    out = make("flip")(x, torch.tensor([[0.49], [0.5]]))
    assert torch.equal(out[0], x[0].flip(2))
    assert torch.equal(out[1], x[1])


@pytest.mark.parametrize(("fill", "border"), [("black", DARK), ("zero", (0.0, 0.0, 0.0))])
def test_crop_shifts_by_whole_pixels_and_fills_the_border(fill, border):
    x = images(1)
    out = make(f"crop(pad=2, fill={fill})")(
        x, torch.tensor([[0.0, 0.99]])
    )  # up-left corner of the padded rows, right end of the columns
    assert torch.equal(out[0, :, 2:, :6], x[0, :, :6, 2:])
    assert torch.equal(out[0, :, 0, 0], torch.tensor(border))
    assert torch.equal(out[0, :, 7, 7], torch.tensor(border))


def test_crop_in_the_middle_is_the_identity():
    x = images(1)
    assert torch.equal(make("crop(pad=4)")(x, torch.tensor([[0.5, 0.5]])), x)


def test_crop_places_are_uniform():
    u = torch.arange(900)[:, None].expand(-1, 2) / 900
    x = torch.zeros(900, 1, 9, 9)
    x[:, 0, 4, 4] = 1
    out = parse_augment("crop(pad=4)", (0.0,), (1, 9, 9))(x, u)
    assert (out.sum(0)[0].diagonal() == 100).all()


def test_rotation_by_nothing_is_the_identity_and_by_a_quarter_turns():
    x = images(1, h=9, w=9)
    turn = make("rotate(degrees=90)", (3, 9, 9))
    assert torch.equal(turn(x, torch.tensor([[0.5]])), x)
    out = turn(x, torch.tensor([[0.0]]))
    assert torch.equal(out, torch.rot90(x, 1, (2, 3))) or torch.equal(out, torch.rot90(x, -1, (2, 3)))


def test_rotation_keeps_every_pixel_value_exact():
    x = images(4)
    out = make("rotate(degrees=15)")(x, uniform(4, 1))
    for k in range(4):
        assert set(out[k, 0].flatten().tolist()) <= {*x[k, 0].flatten().tolist(), DARK[0]}


def test_a_resized_crop_of_everything_is_the_identity():
    x = images()
    assert torch.allclose(
        make("resized_crop(low=1, ratio=1)")(x, uniform(6, 4)), x, atol=1e-5
    )  # bilinear at the pixels themselves


def test_a_resized_crop_stays_within_the_values_of_its_sample():
    x = images(200)
    out = make("resized_crop")(x, uniform(200, 4))
    assert (out.amax((2, 3)) <= x.amax((2, 3)) + 1e-5).all()
    assert (out.amin((2, 3)) >= x.amin((2, 3)) - 1e-5).all()


def test_fedpart_cifar100_recipe_pads_in_normalised_units():
    augment = make("flip + rotate(degrees=15) + crop(pad=4, fill=zero)")
    out = augment(torch.ones(1, 3, 8, 8), torch.tensor([[0.9, 0.5, 0.0, 0.0]]))
    assert torch.equal(out[0, :, :4], torch.zeros(3, 4, 8))


def test_digits_are_black_at_zero_and_augment_in_a_federation():
    fed = load(DataSpec(augment="crop(pad=1)"))
    x = fed.train.take(fed.training(0)[:4])
    assert fed.augment(x, torch.zeros(4, 2))[:, :, 0].abs().max() == 0


@pytest.mark.parametrize(
    "text",
    [
        "crop(pad=0)",
        "rotate(degrees=0)",
        "rotate(degrees=200)",
        "resized_crop(low=0)",
        "flip(p=2)",
        "crop(fill=white)",
        "blur",
    ],
)
def test_settings_that_cannot_be_meant_are_refused(text):
    with pytest.raises(ConfigError):
        make(text)


def test_samples_that_are_no_images_are_refused():
    with pytest.raises(DataError, match="leave augment out"):
        load(DataSpec(data="wine", augment="flip"))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match=r"u \[B, 1\]"):
        make("flip")(images(2), torch.zeros(2, 3))


def test_none_means_none():
    assert make("none") is None
    assert make(None) is None
