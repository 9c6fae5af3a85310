"""Messages: what is encoded is what is decoded, in bytes that the safetensors library agrees with, of a length known
beforehand.
"""

from __future__ import annotations

import json
import math

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.common.errors import WireError
from fedstrata.storage.container import DTYPES, Limits
from fedstrata.wire import Frame, decode, encode, size


def random_tensor(shape, dtype, seed=0):
    """Any bit pattern that the dtype has, NaN and denormals included."""
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(
        0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].shape == b[name].shape
        assert torch.equal(a[name].reshape(-1).view(torch.uint8), b[name].reshape(-1).view(torch.uint8))


names = st.from_regex(r"[A-Za-z0-9_@][A-Za-z0-9_@.:/#+-]{0,20}", fullmatch=True).filter(lambda n: n != "__metadata__")
shapes = st.dictionaries(
    names, st.tuples(st.lists(st.integers(0, 4), max_size=4).map(tuple), st.sampled_from(list(DTYPES))), max_size=6
)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
fields = st.dictionaries(names, numbers | text, max_size=5)
kinds = st.sampled_from(["down", "up"])


@settings(max_examples=150, deadline=None)
@given(kinds, fields, shapes)
def test_a_frame_survives_the_journey_and_its_size_was_known(kind, fields, shapes):
    tensors = {name: random_tensor(*form, seed=i) for i, (name, form) in enumerate(shapes.items())}
    data = encode(Frame(kind, fields, tensors))
    back = decode(data)
    assert back.kind == kind
    assert back.fields == fields
    assert [type(v) for v in back.fields.values()] == [type(fields[k]) for k in back.fields]
    assert_same(back.tensors, tensors)
    known = size(kind, fields, shapes)
    assert known.total == len(data)
    assert known.payload == sum(t.numel() * t.itemsize for t in tensors.values())


@settings(max_examples=60, deadline=None)
@given(shapes)
def test_the_bytes_are_those_of_the_safetensors_library(shapes):
    tensors = {name: random_tensor(*form) for name, form in shapes.items()}
    data = encode(Frame("up", {"samples": 3, "note": 'é"\\\n'}, tensors))
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert_same(safetensors.torch.load(data), tensors)
    assert safetensors.torch.save(tensors, metadata) == data


def test_a_decoded_frame_does_not_depend_on_the_message_buffer():
    data = bytearray(encode(Frame("down", {}, {"w": torch.ones(3)})))
    frame = decode(memoryview(data))
    data[-12:] = bytes(12)
    assert frame.tensors["w"].tolist() == [1, 1, 1]
    frame.tensors["w"].add_(1)  # writable, too


def test_views_and_gradients_are_sent_as_plain_values():
    flat = torch.arange(12.0, requires_grad=True)
    sent = {"t": flat.reshape(3, 4).T, "part": flat[5:7]}
    assert_same(decode(encode(Frame("up", {}, sent))).tensors, {k: v.detach().contiguous() for k, v in sent.items()})


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        (Frame("sideways", {}, {}), "kind"),
        (Frame("up", {"ok": True}, {}), "bool"),
        (Frame("up", {"loss": math.nan}, {}), "nan"),
        (Frame("up", {"loss": math.inf}, {}), "inf"),
        (Frame("up", {"n": 2**64}, {}), "64 bits"),
        (Frame("up", {"n": None}, {}), "None"),
        (Frame("up", {"half": "\ud800"}, {}), "half"),
        (Frame("up", {"a b": 1}, {}), "name"),
        (Frame("up", {"t": "x" * (1 << 16 | 1)}, {}), "65536"),
        (Frame("up", {}, {"": torch.ones(1)}), "name"),
        (Frame("up", {}, {"a" * 257: torch.ones(1)}), "256"),
        (Frame("up", {}, {"w": torch.ones(1, dtype=torch.complex64)}), "complex64"),
        (Frame("up", {}, {"w": torch.ones(1).to_sparse()}), "sparse"),
        (Frame("up", {}, {"w": torch.ones(1, device="meta")}), "meta"),
        (Frame("up", {}, {"w": [1.0]}), "list"),
        (Frame("up", {}, {"w": torch.ones([1] * 9)}), "9 axes"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_cannot_travel_is_refused_by_name(frame, word):
    with pytest.raises(WireError, match=word):
        encode(frame)


@pytest.mark.parametrize("limit", ["message", "header", "tensors", "rank", "name", "fields", "text"])
def test_every_limit_holds_exactly(limit):
    frame = Frame("up", {"abc": "text", "n": 1}, {"longname": torch.ones(2, 2), "b": torch.ones(3)})
    data = encode(frame)
    header = int.from_bytes(data[:8], "little")
    exact = {"message": len(data), "header": header, "tensors": 2, "rank": 2, "name": 8, "fields": 2, "text": 4}[limit]
    decode(data, Limits(**{limit: exact}))
    encode(frame, Limits(**{limit: exact}))
    with pytest.raises(WireError):
        decode(data, Limits(**{limit: exact - 1}))
    with pytest.raises(WireError):
        encode(frame, Limits(**{limit: exact - 1}))


def test_t30_a_tensor_above_four_megabytes_travels_whole():
    tensor = torch.randn(1_100_000, generator=torch.Generator().manual_seed(0))
    data = encode(Frame("up", {"samples": 1}, {"w": tensor}))
    assert len(data) > 4 << 20
    assert torch.equal(decode(data).tensors["w"], tensor)
