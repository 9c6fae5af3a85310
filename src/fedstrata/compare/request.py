"""Validate a comparison request: methods, seeds, budget and baseline."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from torch import nn

from fedstrata.analysis.comparison import Budget, BudgetUnit
from fedstrata.common.call_syntax import parse_call
from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.common.plugins import Kind as PluginKind
from fedstrata.common.plugins import installed
from fedstrata.compare import run_cache
from fedstrata.compare.entries import Competitor, baseline_of, check_seeds, read_competitors
from fedstrata.compare.federation_cache import CachedConfig
from fedstrata.config.config import KEYS, Config
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece
from fedstrata.data.federation import Federation
from fedstrata.data.registry import find_dataset, find_law
from fedstrata.engine.assembly import RunComponents, assemble
from fedstrata.models import find as find_model
from fedstrata.trackers import check as check_track

UNITS: tuple[BudgetUnit, ...] = get_args(BudgetUnit)


@dataclass(frozen=True)
class PythonInputs:
    """Holds objects from Python that replace names; runs with any of them stay in this process."""

    federation: Federation | None = None
    module: nn.Module | None = None


@dataclass(frozen=True)
class ComparisonRequest:
    """Describes a validated comparison request.

    Attributes:
        rivals, seeds, baseline: who.
        config: of all, with the budget in it.
        budget: as a report names it, or None.
        command: that asks for it again.
        screen: share of the dropped that is audited, or None without screening.
        side_by_side: runs at a time, or None for as many as serve the machine.
        own: data and model from Python.
        verb: what is done with the runs; it begins the folder's name.
    """

    competitors: tuple[Competitor, ...]
    seeds: tuple[int, ...]
    baseline: str
    config: Config
    budget: Budget | None = None
    command: str = ""
    screen: float | None = None
    side_by_side: int | None = None
    python_inputs: PythonInputs = PythonInputs()
    verb: Literal["compare", "sweep"] = "compare"

    @property
    def folder(self) -> Path:
        """Return the folder: OUT/compare-NAME, OUT/sweep-NAME."""
        name = self.config.name
        if name == "auto":
            name = f"{re.sub(r'[^A-Za-z0-9]+', '-', self.config.data).strip('-')[:40]}-{self.digest()[:10]}"
        return Path(self.config.out) / f"{self.verb}-{name}"

    def digest(self) -> str:
        """Return the SHA-256 (hex) over all that decides what is compared."""
        meant = {
            "entries": [[r.entry.method, dict(r.entry.settings)] for r in self.competitors],
            "seeds": self.seeds,
            "baseline": self.baseline,
            "config": self.config.replace(method="fedavg", seed=0).digest(),
            "screen": self.screen,
        }
        return hashlib.sha256(json.dumps(meant, sort_keys=True, allow_nan=False).encode()).hexdigest()

    def parts(self, competitor: Competitor, federation: Federation) -> RunComponents:
        """Assemble the run of a competitor, so an invalid one is refused now.

        Raises:
            FedstrataError: with the label of the competitor.
        """
        config = competitor.config(self.config, self.seeds[0])
        method = competitor.method if competitor.from_python else None
        try:
            if self.python_inputs.federation is not None:
                return assemble(config, self.python_inputs.federation, self.python_inputs.module, method)
            return assemble(CachedConfig.of(config, federation), None, self.python_inputs.module, method)
        except FedstrataError as error:
            raise type(error)(f"{competitor.entry.label}: {error}") from error


def make_request(
    methods: Sequence[str | Piece | Method],
    config: Config,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    baseline: str | None = None,
    budget: Budget | None = None,
    screen: bool | float = False,
    side_by_side: int | None = None,
    command: str | None = None,
    python_inputs: PythonInputs | None = None,
) -> ComparisonRequest:
    """Validate a request; see :func:`fedstrata.compare.compare`.

    Raises:
        ConfigError: an invalid request, in one sentence.
    """
    seeds = check_seeds(seeds)
    config, budget = apply_budget(config, budget)
    competitors = read_competitors(methods, config)
    audited = audit_share(screen)
    base = ComparisonRequest(
        competitors,
        seeds,
        baseline_of(competitors, baseline),
        config,
        budget,
        "",
        audited,
        side_by_side,
        python_inputs or PythonInputs(),
    )
    run_cache.check_out(Path(config.out))
    check_track(config.track)
    if side_by_side is not None and (
        isinstance(side_by_side, bool) or not isinstance(side_by_side, int) or not 1 <= side_by_side <= 1024
    ):
        raise ConfigError(f"side-by-side is {side_by_side}; it is a number of runs from 1 to 1024, or is left out.")
    return replace(base, command=command if command is not None else command_of(base))


def apply_budget(config: Config, budget: Budget | None) -> tuple[Config, Budget | None]:
    """Return the configuration with the budget in its ``stop.*`` keys; a budget that is configured already counts too.

    Raises:
        ConfigError: more than one, or an invalid amount.
    """
    configured = {kind: value for kind in UNITS if (value := config.flat()[f"stop.{kind}"]) is not None}
    if budget is not None:
        if budget.kind not in UNITS:
            raise ConfigError(f"a budget of {budget.kind!r} is not known; it is one of {', '.join(UNITS)}.")
        if configured and configured != {budget.kind: budget.amount}:
            given = " and ".join(f"stop.{kind}={value}" for kind, value in configured.items())
            raise ConfigError(f"a budget of {budget.kind} is given beside {given}; give one of them.")
        amount = int(budget.amount) if budget.kind == "bytes" and float(budget.amount).is_integer() else budget.amount
        return config.replace(**{f"stop.{budget.kind}": amount}), replace(budget, amount=amount)
    if len(configured) > 1:
        given = " and ".join(f"stop.{kind}={value}" for kind, value in configured.items())
        raise ConfigError(
            f"{given} are two ends of a run; a comparison has one, or it is unclear which one a method reached. Leave"
            " out the others."
        )
    return config, next((Budget(kind, value) for kind, value in configured.items()), None)


def audit_share(screen: float) -> float | None:
    """Return the share of the dropped methods that is audited: a quarter by default.

    Raises:
        ConfigError: not in (0, 1].
    """
    if screen is False or screen is None:
        return None
    if screen is True:
        return 0.25
    if not isinstance(screen, int | float) or not 0 < screen <= 1:
        raise ConfigError(
            f"screen is {screen}; it is the share of the dropped methods that is trained to the end anyhow, above 0 and"
            " at most 1."
        )
    return float(screen)


def check_target(target: float | None) -> Budget | None:
    """Return the budget that a target accuracy means.

    Raises:
        ConfigError: not in (0, 1].
    """
    if target is None:
        return None
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 < target <= 1:
        raise ConfigError(
            f"target accuracy is {target}; it is a share of right answers, above 0 and at most 1, for example 0.8."
        )
    return Budget("accuracy", float(target))


def command_of(request: ComparisonRequest, verb: str = "compare") -> str:
    """Return the command that makes this comparison.

    "" where pieces, data or model came from Python, which no command can say.
    """
    if any(r.from_python for r in request.competitors) or request.python_inputs != PythonInputs():
        return ""
    settings = differences(request.config)
    methods = [method_text(competitor) for competitor in request.competitors]
    more = ["--baseline", request.baseline] if request.baseline != baseline_of(request.competitors, None) else []
    more += ["--screen", str(request.screen)] if request.screen is not None else []
    return shlex.join(["fedstrata", verb, *settings, "--methods", *methods, "--seeds", *map(str, request.seeds), *more])


def differences(config: Config) -> list[str]:
    """List the settings that differ from their defaults, as on a command line, without method and seed."""
    return [f"{k}={_word(v)}" for k, v in config.flat().items() if v != KEYS[k].default and k not in ("method", "seed")]


def method_text(competitor: Competitor) -> str:
    """Write a competitor as after ``--methods``."""
    settings = " ".join(f"{key}={_word(value)}" for key, value in competitor.entry.settings.items())
    return f"{competitor.entry.method} | {settings}" if settings else competitor.entry.method


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


def needs_this_process(request: ComparisonRequest, parts: Mapping[str, RunComponents]) -> bool:
    """Return whether a run needs objects of this process, or names registered here that are no plug-ins."""
    if request.python_inputs != PythonInputs() or any(r.from_python for r in request.competitors):
        return True
    return any(
        not is_builtin(thing) and name not in installed(kind)
        for kind, name, thing in _used(request.config, parts.values())
    )


def is_builtin(thing: object) -> bool:
    """Return whether a class, function or object comes from this package."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return module == "fedstrata" or module.startswith("fedstrata.")


def _used(config: Config, parts: Iterable[RunComponents]) -> Iterator[tuple[PluginKind, str, object]]:
    """Yield all that a configuration refers to by name: (kind, name, object)."""
    for one in parts:
        yield from (("methods", name, type(piece)) for name, piece in one.method.named.items())
        yield from (("measures", name, type(measure)) for name, measure in one.measures.items())
    data, law, model = (parse_call(config.data), parse_call(config.partition), parse_call(config.model))
    yield "datasets", data.name, find_dataset(data.name).factory
    if law.name != "auto":
        yield "partitions", law.name, type(find_law(law))
    if model.name != "auto":
        yield "models", model.name, find_model(model.name).factory


Observers: TypeAlias = Sequence[Callable[[Any], None]]

__all__ = ["ComparisonRequest", "PythonInputs", "make_request"]
