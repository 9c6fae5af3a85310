"""Schedules: pure functions of the round, held against torch where torch has them."""

import math

import pytest
import torch

from fedstrata.common.errors import ConfigError
from fedstrata.config.lr_schedules import SCHEDULES, schedule


def factors(text, rounds):
    at = schedule(text, rounds)
    return [at(r) for r in range(rounds)]


def of_torch(make, rounds):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimiser)
    seen = []
    for _ in range(rounds):
        seen.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("cosine", lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12)),
        ("cosine(final=0.1)", lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12, eta_min=0.1)),
        ("step(rounds=[4, 9], factor=0.1)", lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 9])),
        ("exponential(rate=0.9)", lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)),
        ("linear(final=0.2)", lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=12)),
    ],
)
def test_schedule_equals_torch(text, make):
    assert factors(text, 12) == pytest.approx(of_torch(make, 12), rel=1e-9)  # both are a few float64 operations


def test_constant_is_exactly_one():
    assert factors("constant", 5) == [1.0] * 5


def test_warmup_rises_and_factors_multiply():
    assert factors("warmup(rounds=4)", 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    both = factors("warmup(rounds=4) + cosine", 6)
    assert both == [w * c for w, c in zip(factors("warmup(rounds=4)", 6), factors("cosine", 6), strict=True)]


def test_every_schedule_gives_finite_factors_and_does_not_remember():
    examples = {"step": "step(rounds=[2])", "exponential": "exponential(rate=0.5)", "warmup": "warmup(rounds=3)"}
    for name in SCHEDULES.items():
        at = schedule(examples.get(name, name), 5)
        forward = [at(r) for r in range(5)]
        assert [at(r) for r in reversed(range(5))] == forward[::-1]
        assert all(math.isfinite(f) and 0 <= f <= 1 for f in forward)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosin", "'cosine'"),
        ("cosine(finl=0.1)", "'final'"),
        ("cosine(final=2)", "in \\[0, 1\\]"),
        ("step", "needs rounds"),
        ("step(rounds=[])", "ascending"),
        ("step(rounds=[0])", "at least 1"),
        ("step(rounds=[2], factor=0)", "positive"),
        ("exponential(rate=1.5)", "at most 1"),
        ("warmup(rounds=0)", "at least 1"),
    ],
)
def test_a_schedule_that_cannot_be_meant_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        schedule(text, 10)
