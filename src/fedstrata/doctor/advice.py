"""Turn rules and numbers into advice: reasons for and against each method, its costs, and whether it can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from fedstrata.common.errors import FedstrataError
from fedstrata.config.config import KEYS, Config
from fedstrata.data.federation import Federation
from fedstrata.data.statistics.interpretation import Meaning
from fedstrata.data.statistics.survey import Survey
from fedstrata.doctor.costs import Sizes
from fedstrata.doctor.diagnosis import Advice, Verdict
from fedstrata.doctor.rules import MOST, rules
from fedstrata.engine.assembly import RunComponents, assemble
from fedstrata.engine.describe import probe_costs
from fedstrata.methods import method as parse_method
from fedstrata.methods import rows
from fedstrata.methods import source_of as piece_source
from fedstrata.methods.parts.advice import FederationSummary, Rule

ORDER: tuple[Verdict, ...] = ("baseline", "candidate", "control", "later", "not advised", "cannot run", "open")
DECIDES: Mapping[Verdict, str] = {
    "baseline": "baseline",
    "candidate": "for",
    "control": "control",
    "later": "later",
    "not advised": "against",
}
FEDAVG = "McMahan et al., AISTATS 2017"


def summarize(parts: RunComponents, survey: Survey, skew: Sequence[Meaning], each: Sizes) -> FederationSummary:
    """Summarize the federation for the rules."""
    setup, task = parts.setup, parts.federation.task
    by_name = {meaning.name: meaning for meaning in skew}
    label = by_name.get("label_skew") or by_name.get("target_shift")
    features = by_name.get("feature_shift")
    held = np.isin(survey.ids, np.array(parts.federation.heldout, dtype=np.int64))
    trained = survey.training[~held]
    return FederationSummary(
        label=label.word if label else "unknown",
        label_value=(label.value or 0.0) if label else 0.0,
        features=features.word if features else "unknown",
        feature_value=(features.value or 0.0) if features else 0.0,
        kind=task.kind,
        images=len(task.shape) == 3 and not task.vocabulary,
        tokens=bool(task.vocabulary),
        norms=any(entry.kind == "norm" for entry in setup.layout.entries.values()),
        body=any(entry.role == "body" for entry in setup.layout.entries.values()),
        own_tests=parts.federation.own_test is not None,
        heldout=len(parts.federation.heldout),
        test=tests_of(parts.federation),
        eligible=len(setup.eligible),
        cohort=setup.cohort,
        rounds=setup.rounds,
        low_steps=each.low,
        high_steps=each.high,
        equal_steps=each.equal,
        median=float(np.median(trained)),
        batch=setup.local.batch,
        model=parts.config.model_for(task),
        exits=len(setup.net.exits),
    )


def tests_of(federation: Federation) -> str:
    """Return the setting ``test`` that made these splits."""
    if federation.own_test is None:
        return "server"
    if federation.own_test.which == "train":
        return "own"
    return "client" if federation.test is None else "both"


def advise(parts: RunComponents, summary: FederationSummary, module: nn.Module | None = None) -> tuple[Advice, ...]:
    """Advise on every registered method, candidates first, in the order of the rules.

    Args:
        parts: of the run as configured.
        summary: numbers for the rules.
        module: the user's own model, if there is one.
    """
    spoken = rules()
    known = {name for text in spoken for name in parse_method(text).named}
    rest = [row.examples[0] for row in rows() if row.name not in known]
    result = [_advice_on(text, spoken[text], parts, summary, module) for text in spoken]
    result += [Advice(text, "open", ("no rule for or against it",), source_of(text)) for text in rest]
    return tuple(sorted(result, key=lambda advice: ORDER.index(advice.verdict)))


def source_of(method: str) -> str:
    """Return the publication of a method."""
    pieces = parse_method(method).pieces
    return "; ".join(piece_source(piece) for piece in pieces) or FEDAVG


def verdict_of(speaking: Sequence[Rule]) -> Verdict:
    """Return the verdict of the rules that hold: any rule against weighs more than any rule for."""
    directions = {rule.speaks for rule in speaking}
    if "against" in directions:
        return "not advised"
    order: tuple[tuple[str, Verdict], ...] = (
        ("baseline", "baseline"),
        ("for", "candidate"),
        ("control", "control"),
        ("later", "later"),
    )
    return next((verdict for speaks, verdict in order if speaks in directions), "open")


def _advice_on(
    method: str, known: Sequence[Rule], parts: RunComponents, summary: FederationSummary, module: nn.Module | None
) -> Advice:
    holding = [rule for rule in known if rule.when(summary)]
    verdict = verdict_of(holding)
    decided = DECIDES.get(verdict)  # what speaks otherwise would only confuse
    holding = [rule for rule in holding if rule.speaks == decided]
    reasons = tuple(rule.reason(summary) + (f" [{rule.source}]" if rule.source else "") for rule in holding)
    advice = Advice(method, verdict, reasons or ("no rule for or against it",), source_of(method))
    return _with_costs(advice, parts, module) if verdict in ("baseline", "candidate", "control") else advice


def _with_costs(advice: Advice, parts: RunComponents, module: nn.Module | None) -> Advice:
    """Add the costs, or the reason why the method cannot run here."""
    try:
        probe = probe_costs(
            assemble(config_for(parts.config.replace(method=advice.method), parts.federation), parts.federation, module)
        )
    except FedstrataError as error:
        return replace(advice, verdict="cannot run", reasons=(str(error),))
    return replace(
        advice, bytes=probe.down.payload + probe.up.payload, flops=sum(probe.flops.values()), state=probe.client_state
    )


def config_for(config: Config, federation: Federation) -> Config:
    """Return the configuration for loaded data: data settings take their defaults, derived ones are set."""
    plain = {name: KEYS[name].default for name in ("data", "augment", "partition", "test", "heldout", "clients")}
    return config.replace(model=config.model_for(federation.task), validation=federation.validation, **plain)


def candidates(advice: Sequence[Advice]) -> tuple[str, ...]:
    """List the methods of a first comparison: the baseline, candidates, and one control; at most MOST."""
    chosen = [a.method for a in advice if a.verdict in ("baseline", "candidate")]
    control = [a.method for a in advice if a.verdict == "control"]
    return (*chosen[: MOST - len(control)], *control)
