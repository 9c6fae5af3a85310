"""Hold a diagnosis as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedstrata.data.statistics.facts import Facts
from fedstrata.data.statistics.interpretation import Meaning
from fedstrata.report.cost_tables import as_plain

Weight = Literal["serious", "look", "note"]
WEIGHTS: tuple[Weight, ...] = ("serious", "look", "note")
Verdict = Literal["baseline", "candidate", "control", "later", "not advised", "cannot run", "open"]


@dataclass(frozen=True)
class Problem:
    """Describes a fault of the data or the settings that changes what a result means.

    Attributes:
        weight: serious (a result would be wrong or empty), look (it would be hard to read), note.
        code: a short name.
        text: one sentence with the numbers.
        remedy: what to do, or "".
        count: clients, samples or classes concerned; 0 where it is about a setting.
    """

    weight: Weight
    code: str
    text: str
    remedy: str = ""
    count: int = 0


@dataclass(frozen=True)
class CostEstimate:
    """Estimates one amount, with its arithmetic.

    Attributes:
        what: name of the amount.
        value: in ``unit``; ``high`` is the upper end where it is a range.
        unit: "bytes", "flops" or "seconds".
        how: the arithmetic.
        large: whether it deserves attention.
    """

    what: str
    value: float
    unit: Literal["bytes", "flops", "seconds"]
    how: str
    high: float | None = None
    large: bool = False


@dataclass(frozen=True)
class Advice:
    """Holds the reasons for or against one method here.

    Attributes:
        method: in call syntax.
        verdict: baseline, candidate, control (a yardstick, not a method to deploy), later (try it if its relative does
            well), not advised, cannot run, or open (no rule speaks).
        reasons: with the measured numbers.
        source: of the method.
        bytes, flops, state: bytes of a client and round up and down, FLOPs of a sample, bytes kept for a client; None
            where not measured.
    """

    method: str
    verdict: Verdict
    reasons: tuple[str, ...]
    source: str
    bytes: int | None = None
    flops: float | None = None
    state: int | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Holds a whole diagnosis: advice before measurement.

    Attributes:
        facts: of the federation.
        setting: what would be run: method, model, splits.
        skew: in words.
        problems: the weightiest first.
        costs: of a run as configured.
        advice: every registered method, candidates first.
        candidates: methods for a first comparison.
        left_out: candidates beyond those.
        settings: key=value texts that the comparison needs beside the configuration.
        seconds: (from, to) of that comparison on this machine, all seeds; None where nothing was timed.
        command: the comparison, ready to run.
    """

    facts: Facts
    setting: dict[str, str]
    skew: tuple[Meaning, ...]
    problems: tuple[Problem, ...]
    costs: tuple[CostEstimate, ...]
    advice: tuple[Advice, ...]
    candidates: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    seconds: tuple[float, float] | None = None
    command: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        plain: dict[str, Any] = as_plain(self)
        return plain | {"facts": self.facts.as_dict()}
