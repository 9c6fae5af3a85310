"""One bad reply of ten is left out, and the model is the one that the other nine would have made (faults rows 1, 5, 6,
7, 9, 11, 12).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedstrata.storage import sha256_of
from fedstrata.wire import Bounds, Frame, decode, encode, inspect, unpack

SHAPES = {"conv.weight": ((4, 3), torch.float32), "bn.count": ((), torch.int64)}


def reply(client):
    g = torch.Generator().manual_seed(client)
    return Frame(
        "up",
        {"samples": 10 + client},
        {"conv.weight": torch.randn(4, 3, generator=g), "bn.count": torch.tensor(client)},
    )


def judge(frames):
    """Every message through bytes and gate, as a server does: the replies taken, and the reasons against the others."""
    taken, refused = [], {}
    for client, frame in frames.items():
        arrived = decode(encode(frame))
        tensors = unpack(arrived.tensors, SHAPES, {})
        refusal = inspect(tensors, arrived.fields.get("samples"), SHAPES, Bounds(100, norm=1e3))
        if refusal:
            refused[client] = refusal.code
        else:
            taken.append((arrived.fields["samples"], tensors["conv.weight"]))
    return taken, refused


REDUCERS = {
    "mean": lambda taken: sum(n * x for n, x in taken) / sum(n for n, _ in taken),
    "median": lambda taken: torch.stack([x for _, x in taken]).median(0).values,
    "trimmed": lambda taken: torch.stack([x for _, x in taken]).sort(0).values[1:-1].mean(0),
}


def spoiled(value):
    frame = reply(3)
    frame.tensors["conv.weight"][2, 1] = value
    return frame


def changed(frame, **tensors):
    return Frame("up", frame.fields, {k: v for k, v in (dict(frame.tensors) | tensors).items() if v is not None})


def counted(samples):
    return Frame("up", {} if samples is None else {"samples": samples}, reply(3).tensors)


BAD = {
    "nan": (spoiled(math.nan), "nonfinite"),
    "inf": (spoiled(math.inf), "nonfinite"),
    "norm": (spoiled(1e6), "norm"),
    "no samples": (counted(0), "empty"),
    "negative": (counted(-3), "samples"),
    "too many": (counted(10**18), "samples"),
    "fraction": (counted(3.5), "samples"),
    "whole float": (counted(13.0), "samples"),
    "text": (counted("13"), "samples"),
    "no count": (counted(None), "samples"),
    "layer missing": (changed(reply(3), **{"conv.weight": None}), "missing"),
    "layer renamed": (changed(reply(3), **{"conv.weight": None, "conv.weights": torch.ones(4, 3)}), "missing"),
    "layer added": (changed(reply(3), extra=torch.ones(1)), "extra"),
    "float64": (changed(reply(3), **{"conv.weight": torch.ones(4, 3).double()}), "dtype"),
    "float16": (changed(reply(3), **{"conv.weight": torch.ones(4, 3).half()}), "dtype"),
    "bfloat16": (changed(reply(3), **{"conv.weight": torch.ones(4, 3).bfloat16()}), "dtype"),
    "averaged counter": (changed(reply(3), **{"bn.count": torch.tensor(8.0)}), "dtype"),
    "transposed": (changed(reply(3), **{"conv.weight": torch.ones(3, 4)}), "shape"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("reduce", REDUCERS.values(), ids=REDUCERS)
def test_a_bad_reply_leaves_the_model_of_the_others(name, reduce):
    frame, code = BAD[name]
    taken, refused = judge({client: frame if client == 3 else reply(client) for client in range(10)})
    assert refused == {3: code}
    twin, _ = judge({client: reply(client) for client in range(10) if client != 3})
    assert sha256_of([reduce(taken)]) == sha256_of([reduce(twin)])


def test_a_round_without_samples_has_no_reply_to_average():
    taken, refused = judge({client: counted(0) for client in range(4)})
    assert taken == []
    assert set(refused.values()) == {"empty"}


def test_big_endian_numbers_do_not_pass_as_floats():
    swapped = torch.from_numpy(
        reply(3).tensors["conv.weight"].numpy().astype(">f4").view(np.uint8).reshape(4, 12).copy()
    )
    assert judge({0: changed(reply(3), **{"conv.weight": swapped})})[1] == {0: "dtype"}


def test_odd_numbers_arrive_with_every_bit():
    odd = torch.tensor([-0.0, 1e-45, -1e-45, 1.17549435e-38] * 3).reshape(4, 3)
    taken, refused = judge({0: changed(reply(0), **{"conv.weight": odd})})
    assert not refused
    assert sha256_of([taken[0][1]]) == sha256_of([odd])
