"""The gate names what is wrong, measured value and limit included; and lets ordinary numbers through."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedstrata.wire import Bounds, inspect
from fedstrata.wire.gate import finite, norm

EXPECTED = {
    "conv.weight": (torch.Size([2, 3]), torch.float32),
    "conv.bias": (torch.Size([2]), torch.float32),
    "bn.count": (torch.Size([]), torch.int64),
}


def reply(**changes):
    return {"conv.weight": torch.ones(2, 3), "conv.bias": torch.zeros(2), "bn.count": torch.tensor(4)} | changes


def code(tensors=None, samples=10, bounds=None):
    refusal = inspect(reply() if tensors is None else tensors, samples, EXPECTED, bounds or Bounds(100))
    return refusal and refusal.code


@pytest.mark.parametrize("samples", [1, 10, 100])
def test_a_good_reply_passes(samples):
    assert code(samples=samples) is None


WRONG = [
    -1,
    -(10**18),
    101,
    10**18,
    10**400,
    True,
    False,
    10.0,
    0.5,
    math.nan,
    math.inf,
    "10",
    b"10",
    None,
    [10],
    (10,),
    np.int64(10),
]
WRONG += [np.float32(10), np.bool_(True), torch.tensor(10), Decimal(10), Fraction(10), 10 + 0j]  # fmt: skip


@pytest.mark.parametrize("samples", WRONG, ids=lambda v: f"{type(v).__name__}-{str(v)[:9]}")
def test_a_wrong_count_is_refused_and_never_coerced(samples):
    assert code(samples=samples) == "samples"


def test_no_samples_has_a_separate_code():
    assert code(samples=0) == "empty"


def test_a_missing_layer_is_named():
    refusal = inspect({}, 10, EXPECTED, Bounds(100))
    assert refusal.code == "missing"
    assert all(name in refusal.message for name in EXPECTED)


def test_at_most_five_names_are_shown():
    extra = reply() | {f"layer{i}": torch.ones(1) for i in range(9)}
    refusal = inspect(extra, 10, EXPECTED, Bounds(100))
    assert (refusal.code, refusal.measured, refusal.limit) == ("extra", "9", "0")
    assert refusal.message.count("layer") == 5


def test_a_renamed_layer_is_missing():
    tensors = reply()
    tensors["conv.weights"] = tensors.pop("conv.weight")
    assert code(tensors) == "missing"


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float64, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.complex64]
)
def test_another_dtype_is_refused(dtype):
    refusal = inspect(reply(**{"conv.bias": torch.zeros(2, dtype=dtype)}), 10, EXPECTED, Bounds(100))
    assert refusal.code == "dtype"
    assert str(dtype) in refusal.message


def test_an_averaged_counter_is_refused():
    assert code(reply(**{"bn.count": torch.tensor(8.0)})) == "dtype"


@pytest.mark.parametrize(
    "value", [[0.0, 0.0], np.zeros(2, dtype=">f4"), torch.zeros(2).to_sparse(), torch.zeros(2, device="meta"), None]
)
def test_what_is_not_a_dense_tensor_is_refused(value):
    assert code(reply(**{"conv.bias": value})) == "dtype"


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (0, 3), ()])
def test_another_shape_is_refused(shape):
    assert code(reply(**{"conv.weight": torch.ones(shape)})) == "shape"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(6))
def test_one_bad_number_is_found_and_shown(value, place):
    weight = torch.ones(2, 3)
    weight.view(-1)[place] = value
    refusal = inspect(reply(**{"conv.weight": weight}), 10, EXPECTED, Bounds(100))
    assert refusal.code == "nonfinite"
    assert f"[{place}] = {value}" in refusal.message


def test_opposite_infinities_do_not_cancel_and_large_sums_do_not_alarm():
    assert not finite(torch.tensor([math.inf, -math.inf]))
    assert finite(torch.full((1000,), 3e38))


@pytest.mark.parametrize("value", [-0.0, 1e-45, -1e-45, 1.17549435e-38, 5e-39, 3.4028235e38])
def test_odd_but_finite_numbers_are_accepted(value):
    assert code(reply(**{"conv.bias": torch.tensor([value, 0.0])})) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_is_exact_in_every_float(dtype):
    for n in (1, 7, 33, 1025):
        good = torch.full((n,), torch.finfo(dtype).max, dtype=dtype)
        assert finite(good)
        for bad in (math.nan, math.inf, -math.inf):
            for place in {0, n // 2, n - 1}:
                wrong = good.clone()
                wrong[place] = bad
                assert not finite(wrong)
    assert finite(torch.empty(0, dtype=dtype))


def test_the_norm_limit_counts_all_tensors_together():
    tensors = reply(**{"conv.weight": torch.full((2, 3), 4.0), "conv.bias": torch.full((2,), math.sqrt(2.0))})
    assert code(tensors, bounds=Bounds(100, norm=10.01)) is None
    refusal = inspect(tensors, 10, EXPECTED, Bounds(100, norm=9.99))
    assert (refusal.code, refusal.limit) == ("norm", "9.99")
    assert float(refusal.measured) == pytest.approx(10, rel=1e-6)  # float32 squares


def test_a_zero_update_has_norm_zero_and_passes():
    assert code(reply(**{"conv.weight": torch.zeros(2, 3)}), bounds=Bounds(100, norm=1e-9)) is None


def test_the_norm_of_a_long_vector_is_that_of_float64():
    x = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
    assert norm([x]) == pytest.approx(x.double().norm().item(), rel=1e-6)  # float32 within blocks of 65,536


def test_hostile_names_are_escaped_and_cut():
    refusal = inspect(reply() | {"\x1b[31m\n" + "a" * 10_000: torch.ones(1)}, 10, EXPECTED, Bounds(100))
    assert "\x1b" not in refusal.message
    assert len(refusal.message) < 200


def test_cheap_checks_come_first():
    everything = {"conv.bias": torch.full((3,), math.nan, dtype=torch.float64)}
    assert code(everything, samples="x") == "samples"
    assert code(everything) == "missing"
    assert code(reply(**everything)) == "dtype"
    assert code(reply(**{"conv.bias": torch.full((3,), math.nan)})) == "shape"
