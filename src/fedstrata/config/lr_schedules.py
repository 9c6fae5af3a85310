"""Define learning-rate schedules: pure functions of the round. Joined by ``+``, their factors multiply."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from fedstrata.common.call_syntax import bind, parse_calls
from fedstrata.common.errors import ConfigError
from fedstrata.common.registry import Registry

Schedule: TypeAlias = Callable[[int], float]
"""Factor on the local learning rate, by zero-based round."""

Shape: TypeAlias = Callable[[int, int], float]
"""The same by (round, rounds), for a run of any length."""


def constant() -> Shape:
    """Keep the learning rate in every round."""
    return lambda _now, _rounds: 1.0


def cosine(final: float = 0.0) -> Shape:
    """Follow half a cosine from 1 to ``final``, which the round after the last would reach.

    Source: Loshchilov and Hutter 2017 (SGDR), one period, as torch's CosineAnnealingLR with T_max = rounds.
    """
    _share(final, "cosine.final")
    return lambda now, rounds: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * now / rounds))


def linear(final: float = 0.0) -> Shape:
    """Follow a straight line from 1 to ``final``, which the round after the last would reach."""
    _share(final, "linear.final")
    return lambda now, rounds: 1 - (1 - final) * now / rounds


def step(rounds: tuple[int, ...], factor: float = 0.1) -> Shape:
    """Multiply by ``factor`` from each of the given zero-based rounds on.

    ``rounds=[160, 240]`` changes rounds 160 to 239 once and those from 240 on twice.

    Source: FedFN, whose server steps in this way.
    """
    if not rounds or list(rounds) != sorted(set(rounds)) or rounds[0] < 1:
        raise ConfigError(
            f"schedule step.rounds is {list(rounds)}; it is a list of rounds, ascending, the first at least 1, such as"
            " [160, 240]."
        )
    if not 0 < factor < math.inf:
        raise ConfigError(f"schedule step.factor is {factor}; it is a positive number, such as 0.1.")
    return lambda now, _rounds: math.prod(factor for start in rounds if now >= start)


def exponential(rate: float) -> Shape:
    """Multiply by ``rate`` after every round: rate ** round."""
    if not 0 < rate <= 1:
        raise ConfigError(f"schedule exponential.rate is {rate}; it is above 0 and at most 1, such as 0.99.")
    return lambda now, _rounds: math.pow(rate, now)


def warmup(rounds: int) -> Shape:
    """Rise over the first ``rounds`` rounds: (round + 1) / rounds, then 1.

    Joined with another: "warmup(rounds=5) + cosine".
    """
    if rounds < 1:
        raise ConfigError(f"schedule warmup.rounds is {rounds}; it is a number of rounds, at least 1.")
    return lambda now, _rounds: min(1.0, (now + 1) / rounds)


def _share(value: float, where: str) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"schedule {where} is {value}; it is a factor on the learning rate, in [0, 1].")


SCHEDULES: Registry[Callable[..., Shape]] = Registry(
    "schedules",
    "schedule",
    accepts=callable,
    wanted="a function of settings that returns a function of (round, rounds)",
    entries={
        "constant": constant,
        "cosine": cosine,
        "linear": linear,
        "step": step,
        "exponential": exponential,
        "warmup": warmup,
    },
)


def schedule(text: str, rounds: int) -> Schedule:
    """Return the factor on the local learning rate, by zero-based round.

    Args:
        text: call syntax, "cosine(final=0.01)" or "warmup(rounds=5) + step(rounds=[160, 240])"; factors multiply.
        rounds: the run's length.
    Raises:
        ConfigError: an unknown schedule or setting, with the nearest valid one, or a value out of range.

    >>> schedule("step(rounds=[2], factor=0.5)", rounds=4)(3)
    0.5
    """
    shapes = [bind(call, SCHEDULES.find(call.name), what="schedule") for call in parse_calls(text)]
    return lambda now: math.prod(shape(now, rounds) for shape in shapes)
