"""Find measures by name, build them from call syntax, and build their panels for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedstrata.common.call_syntax import bind, parse_calls
from fedstrata.common.errors import ConfigError
from fedstrata.common.registry import Registry
from fedstrata.diagnostics.barrier import Barrier
from fedstrata.diagnostics.base import Measure, RoundSnapshot, Runs
from fedstrata.diagnostics.conflict import Conflict
from fedstrata.diagnostics.diversity import FeatureDiversity
from fedstrata.diagnostics.panel import Panel
from fedstrata.diagnostics.updates import Drift, StepSize

NONE, AUTO = "none", "auto"


def _is_measure(offered: object) -> bool:
    return isinstance(offered, type) and issubclass(offered, Measure)


MEASURES: Registry[type[Measure]] = Registry(
    "measures",
    "measure",
    accepts=_is_measure,
    wanted="a subclass of fedstrata.diagnostics.base.Measure",
    entries={
        "drift": Drift,
        "step_size": StepSize,
        "conflict": Conflict,
        "feature_diversity": FeatureDiversity,
        "barrier": Barrier,
    },
    reserved=(NONE, AUTO),
)


def register(name: str, measure: type[Measure]) -> None:
    """Register a measure under a name.

    Raises:
        ConfigError: the name is taken.
    """
    MEASURES.register(name, measure)


def build_measures(text: str, brought: Sequence[str] = ()) -> dict[str, Measure]:
    """Build the measures that a setting names.

    Args:
        text: call syntax, "drift + step_size"; "auto" is those of the method, "none" no measure.
        brought: names of the measures that the method brings; they precede the others.
    Raises:
        ConfigError: an unknown measure or setting, or a measure named twice.
    """
    if text == NONE:
        return {}
    chosen = {name: MEASURES.find(name)() for name in brought}
    for call in [] if text == AUTO else parse_calls(text):
        if call.name in chosen and call.name not in brought:
            raise ConfigError(f"measures names {call.name!r} twice; name it once.")
        chosen[call.name] = bind(call, MEASURES.find(call.name), what="measures")
    return chosen


def panels(runs: Runs) -> list[Panel]:
    """Build the panels of all measures in the rows of runs, in order of appearance.

    Args:
        runs: label of a method -> its runs -> rows of rounds.jsonl.
    """
    names = dict.fromkeys(
        name for seeds in runs.values() for rows in seeds for row in rows for name in row.get("measures") or {}
    )
    return [panel for name in names for panel in _installed(name).panels(name, runs)]


def _installed(name: str) -> Measure:
    """Return the measure, or a stand-in that draws the numbers of one that is not installed."""
    return MEASURES.find(name)() if name in MEASURES else _NotInstalled(name)


class _NotInstalled(Measure):
    """Draws the numbers of a measure that is not installed."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "title", name)
        object.__setattr__(self, "text", f"Numbers of the measure {name!r}, which is not installed.")

    def measure(self, snapshot: RoundSnapshot) -> Mapping[str, float | None]:
        """Compute nothing: the numbers are in the rows."""
        return {}
