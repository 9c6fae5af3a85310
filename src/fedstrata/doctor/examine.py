"""Run ``fedstrata doctor``: inspect data, settings and costs, and propose a comparison.

Nothing is trained but a few steps, for the clock.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np
import psutil
from torch import nn

from fedstrata.config.config import Config
from fedstrata.data.federation import Federation
from fedstrata.data.statistics.duplicates import Duplicates, duplicates
from fedstrata.data.statistics.facts import facts_from
from fedstrata.data.statistics.interpretation import meanings
from fedstrata.data.statistics.survey import WALKED, Survey, spaced, survey
from fedstrata.doctor.advice import advise, candidates, summarize, tests_of
from fedstrata.doctor.costs import EVALUATION, TRAINING, costs, sizes
from fedstrata.doctor.diagnosis import Advice, CostEstimate, Diagnosis
from fedstrata.doctor.problems import Case, problems
from fedstrata.engine.assembly import RunComponents, assemble
from fedstrata.engine.describe import probe_costs
from fedstrata.trackers import check as check_track

SEEDS = "0 1 2"


def examine(
    config: Config,
    *,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    quick: bool = False,
    given: Sequence[str] = (),
) -> Diagnosis:
    """Diagnose a configuration before anything is trained.

    Args:
        config: of the planned run.
        federation: instead of the configured data.
        module: instead of the configured model.
        quick: leave out what reads every sample (duplicates), many samples of files (feature skew of pictures in
            folders) or the clock.
        given: the words of the command line that made the configuration, for the proposed command; () writes out what
            differs from the defaults.
    Raises:
        FedstrataError: an impossible run, with the message of ``fedstrata check``.
    """
    check_track(config.track)
    parts, handed = assemble(config, federation, module), federation is not None or module is not None
    probe = probe_costs(parts)
    seen = survey(parts.federation)
    facts = facts_from(seen, features=None if quick else True)
    skew = meanings(facts.skew)
    problems_found = problems(Case(parts, seen, None if quick else _copies(seen)))
    each = sizes(parts, seen)
    advice = advise(parts, summarize(parts, seen, skew, each), module)
    chosen, more = candidates(advice), _settings(parts)
    estimates = costs(parts, seen, probe, psutil.virtual_memory().total, quick=quick)
    return Diagnosis(
        facts=facts,
        setting=_setting(parts, seen),
        skew=skew,
        problems=problems_found,
        costs=estimates,
        advice=advice,
        candidates=chosen,
        left_out=tuple(a.method for a in advice if a.verdict == "candidate" and a.method not in chosen),
        settings=more,
        seconds=_seconds(estimates, [a for a in advice if a.method in chosen], sum(probe.flops.values())),
        command=_call(federation, module, chosen) if handed else _command(given or _differences(config), more, chosen),
    )


def _copies(seen: Survey) -> Duplicates:
    """Look for duplicates; clients that are derived lazily overlap by intent, so they are not compared."""
    return duplicates(
        seen.federation, () if seen.federation.partition.lazy else seen.ids[spaced(len(seen.ids), WALKED)].tolist()
    )


def _seconds(estimates: Sequence[CostEstimate], chosen: Sequence[Advice], flops: float) -> tuple[float, float] | None:
    """Estimate the seconds of all runs of the comparison: training in proportion to FLOPs, and evaluation."""
    training = next((cost for cost in estimates if cost.what == TRAINING), None)
    if training is None or not flops:
        return None
    assessed = next(
        (cost for cost in estimates if cost.what == EVALUATION), CostEstimate(EVALUATION, 0.0, "seconds", "", 0.0)
    )
    runs = len(SEEDS.split())
    factor = sum((a.flops or flops) / flops for a in chosen)
    low, high = (
        factor * t + len(chosen) * e
        for t, e in ((training.value, assessed.value), (training.high or 0.0, assessed.high or 0.0))
    )
    return runs * low, runs * high


def _setting(parts: RunComponents, seen: Survey) -> dict[str, str]:
    setup, local = parts.setup, parts.config.local
    count, unit = (local.epochs, "epoch") if local.steps is None else (local.steps, "step")
    length = f"{count} {unit}{'' if count == 1 else 's'}"
    few = f" of {len(seen.ids):,} clients that were picked evenly" if not seen.whole else ""
    spread = (
        f"smallest client {seen.training.min():,}, median {np.median(seen.training):,.0f}, largest"
        f" {seen.training.max():,}"
    )
    return {
        "sizes": spread + few,
        "method": str(parts.method),
        "model": (
            f"{parts.config.model_for(parts.federation.task)}, {parts.parameters:,} parameters in"
            f" {len(setup.layout.groups)} layer groups"
        ),
        "rounds": f"{setup.rounds}, {setup.cohort} of {len(setup.eligible):,} clients each",
        "local training": f"{length} of batches of {setup.local.batch}, {setup.local.optimizer} at {setup.local.lr:g}",
        "test": tests_of(parts.federation),
        "validation": f"{parts.config.validation:g} of each client's samples" if parts.config.validation else "none",
    }


def _settings(parts: RunComponents) -> tuple[str, ...]:
    """Return the settings that an honest comparison adds: a round that is chosen on validation data."""
    return () if parts.federation.validation else ("validation=0.1",)


def _differences(config: Config) -> list[str]:
    """List the settings that differ from their defaults, as on a command line."""
    plain = Config().flat()
    return [
        f"{name}={'none' if value is None else value}" for name, value in config.flat().items() if value != plain[name]
    ]


def _command(given: Sequence[str], more: Sequence[str], chosen: Sequence[str]) -> str:
    remaining = [
        word
        for word in given
        if word.partition("=")[0] not in ("method", "seed", "name", *(m.partition("=")[0] for m in more))
    ]
    arguments = " ".join(shlex.quote(word) for word in (*remaining, *more))
    methods = " ".join(f'"{method}"' for method in chosen)
    return f"fedstrata compare {arguments} --methods {methods} --seeds {SEEDS}".replace("  ", " ")


def _call(federation: Federation | None, module: nn.Module | None, chosen: Sequence[str]) -> str:
    """Return the call that compares what was given in Python."""
    handed = "".join(
        f", {name}={name}" for name, value in (("federation", federation), ("module", module)) if value is not None
    )
    return f"fedstrata.compare({list(chosen)}, seeds=({SEEDS.replace(' ', ', ')}){handed})"
