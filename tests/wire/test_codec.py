"""Codecs lose nothing, and their sizes follow from shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.common.errors import WireError
from fedstrata.wire import Frame, decode, encode, pack, packed_shapes, size, unpack
from fedstrata.wire.codec import CODECS, Bits, Dense


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
    packed = assert_round_trip({"w": signs([d])}, {"w": Bits()})
    assert packed["@bits"].numel() == math.ceil(d / 8)


parts = st.dictionaries(st.text("abcdef.", min_size=1, max_size=4), st.lists(st.integers(0, 5), max_size=3), max_size=6)


@settings(max_examples=100, deadline=None)
@given(parts.map(lambda p: {f"x{k}": v for k, v in p.items()}), st.integers(0, 99), st.data())
def test_all_signs_of_a_message_are_packed_once(shapes, seed, data):
    tensors = {
        name: signs(shape, seed + i, torch.float64 if i % 3 == 2 else torch.float32)
        for i, (name, shape) in enumerate(shapes.items())
    }
    codecs = {name: Bits() for name in tensors if data.draw(st.booleans())}
    packed = assert_round_trip(tensors, codecs)
    if codecs:
        assert packed["@bits"].numel() == math.ceil(sum(tensors[name].numel() for name in codecs) / 8)


def test_bit_order_is_little_and_plus_one_is_one():
    packed = pack({"w": torch.tensor([1.0, -1, -1, -1, -1, -1, -1, -1, 1])}, {"w": Bits()})
    assert packed["@bits"].tolist() == [1, 1]


@pytest.mark.parametrize("stray", [0.0, -0.0, 0.999, 2.0, math.nan, math.inf])
def test_what_is_not_a_sign_is_refused_by_value(stray):
    with pytest.raises(WireError, match=f"holds {stray}"):
        pack({"w": torch.tensor([1.0, stray])}, {"w": Bits()})


def test_integers_are_not_signs():
    with pytest.raises(WireError, match="int64"):
        pack({"w": torch.tensor([1, -1])}, {"w": Bits()})


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
        unpack(packed, {"w": ((9,), torch.float32)}, {"w": Bits()})


def test_missing_and_extra_dense_tensors_reach_the_gate():
    back = unpack({"extra": torch.ones(1)}, {"w": ((1,), torch.float32)}, {})
    assert back.keys() == {"extra"}


def test_a_codec_for_a_misspelt_tensor_names_the_nearest():
    with pytest.raises(WireError, match="'weight'"):
        pack({"w": torch.ones(1), "weight": torch.ones(1)}, {"weigth": Bits()})


def test_a_tensor_cannot_take_a_codecs_name():
    with pytest.raises(WireError, match="twice"):
        pack({"w": torch.ones(1), "@bits": torch.ones(1)}, {"w": Bits()})


def test_dense_tensors_are_sent_unchanged():
    packed = assert_round_trip({"w": torch.randn(3), "v": torch.ones(2, 2)}, {"w": Dense()})
    assert packed.keys() == {"w", "v"}


@dataclass(frozen=True)
class Halves:
    """Send float32 values that fit into 16 bits in 16 bits."""

    name = "halves"

    def packed_shapes(self, shapes):
        return {f"@halves.{n}": (s, torch.float16) for n, (s, _) in shapes.items()}

    def pack(self, tensors):
        return {f"@halves.{n}": t.half() for n, t in tensors.items()}

    def unpack(self, packed, shapes):
        return {n: packed[f"@halves.{n}"].to(kind) for n, (_, kind) in shapes.items()}


def test_a_codec_of_a_user_packs_its_tensors_beside_others():
    tensors = {"w": torch.tensor([0.5, -2.0]), "sign": signs([9]), "v": torch.ones(2)}
    packed = assert_round_trip(tensors, {"w": Halves(), "sign": Bits()})
    assert packed.keys() == {"@halves.w", "@bits", "v"}


def test_a_codec_whose_names_do_not_begin_with_its_name_is_refused():
    class Stray(Halves):
        def pack(self, tensors):
            return {"w": tensors["w"]}

    with pytest.raises(WireError, match="packed names begin with @halves"):
        pack({"w": torch.ones(1)}, {"w": Stray()})


def test_codecs_are_known_by_their_names():
    assert all(codec().name == name for name, codec in CODECS.items().items())
