"""Codecs lose nothing, and their sizes follow from shapes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.common.errors import WireError
from fedstrata.wire import Frame, decode, encode, pack, packed_shapes, size, unpack
from fedstrata.wire.codec import CODECS, Dense, register


def signs(shape, seed=0, dtype=torch.float32):
    draw = torch.randint(0, 2, tuple(shape), generator=torch.Generator().manual_seed(seed))
    return draw.to(dtype) * 2 - 1


def forms(tensors):
    return {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}


def assert_round_trip(tensors, codecs):
    shapes = forms(tensors)
    packed = pack(tensors, codecs)
    assert forms(packed) == packed_shapes(shapes, codecs)
    message = encode(Frame("up", {"samples": 7}, packed))
    assert len(message) == size("up", {"samples": 7}, packed_shapes(shapes, codecs)).total
    back = unpack(decode(message).tensors, shapes, codecs)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)
    return packed


@pytest.mark.parametrize("d", [1, 7, 8, 9, 64, 815_332])
def test_signs_take_one_bit_each(d):
    packed = assert_round_trip({"w": signs([d])}, {"w": "bits"})
    assert packed["@bits"].numel() == math.ceil(d / 8)


parts = st.dictionaries(st.text("abcdef.", min_size=1, max_size=4), st.lists(st.integers(0, 5), max_size=3), max_size=6)


@settings(max_examples=100, deadline=None)
@given(parts.map(lambda p: {f"x{k}": v for k, v in p.items()}), st.integers(0, 99), st.data())
def test_all_signs_of_a_message_are_packed_once(shapes, seed, data):
    tensors = {
        name: signs(shape, seed + i, torch.float64 if i % 3 == 2 else torch.float32)
        for i, (name, shape) in enumerate(shapes.items())
    }
    codecs = {name: "bits" for name in tensors if data.draw(st.booleans())}
    packed = assert_round_trip(tensors, codecs)
    if codecs:
        assert packed["@bits"].numel() == math.ceil(sum(tensors[name].numel() for name in codecs) / 8)


def test_bit_order_is_little_and_plus_one_is_one():
    packed = pack({"w": torch.tensor([1.0, -1, -1, -1, -1, -1, -1, -1, 1])}, {"w": "bits"})
    assert packed["@bits"].tolist() == [1, 1]


@pytest.mark.parametrize("stray", [0.0, -0.0, 0.999, 2.0, math.nan, math.inf])
def test_what_is_not_a_sign_is_refused_by_value(stray):
    with pytest.raises(WireError, match=f"holds {stray}"):
        pack({"w": torch.tensor([1.0, stray])}, {"w": "bits"})


def test_integers_are_not_signs():
    with pytest.raises(WireError, match="int64"):
        pack({"w": torch.tensor([1, -1])}, {"w": "bits"})


@pytest.mark.parametrize(
    "packed",
    [
        {},
        {"@bits": torch.zeros(1, dtype=torch.uint8)},
        {"@bits": torch.zeros(3, dtype=torch.uint8)},
        {"@bits": torch.zeros(2)},
        {"@bits": torch.zeros(2, 1, dtype=torch.uint8)},
        {"@bits": torch.tensor([0, 2], dtype=torch.uint8)},
    ],
    ids=["absent", "short", "long", "float", "rank", "padding"],
)
def test_bits_that_no_honest_sender_makes_are_refused(packed):
    with pytest.raises(WireError, match="bits"):
        unpack(packed, {"w": ((9,), torch.float32)}, {"w": "bits"})


def test_missing_and_extra_dense_tensors_reach_the_gate():
    back = unpack({"extra": torch.ones(1)}, {"w": ((1,), torch.float32)}, {})
    assert back.keys() == {"extra"}


@pytest.mark.parametrize(("codecs", "word"), [({"w": "bit"}, "'bits'"), ({"weigth": "bits"}, "'weight'")])
def test_misspelt_declarations_name_the_nearest(codecs, word):
    with pytest.raises(WireError, match=word):
        pack({"w": torch.ones(1), "weight": torch.ones(1)}, codecs)


def test_a_tensor_cannot_take_a_codecs_name():
    with pytest.raises(WireError, match="twice"):
        pack({"w": torch.ones(1), "@bits": torch.ones(1)}, {"w": "bits"})


def test_users_may_register_a_codec_once(monkeypatch):
    monkeypatch.delitem(CODECS, "plain", raising=False)
    register("plain", Dense())
    assert_round_trip({"w": torch.randn(3)}, {"w": "plain"})
    with pytest.raises(WireError, match="registered"):
        register("plain", Dense())
    del CODECS["plain"]
