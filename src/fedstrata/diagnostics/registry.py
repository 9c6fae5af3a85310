"""Measures by name, from call syntax, and their panels for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedstrata.common import plugins
from fedstrata.common.call_syntax import bind, parse_calls
from fedstrata.common.errors import ConfigError, nearest
from fedstrata.diagnostics.barrier import Barrier
from fedstrata.diagnostics.base import Measure, RoundSnapshot, Runs
from fedstrata.diagnostics.conflict import Conflict
from fedstrata.diagnostics.diversity import FeatureDiversity
from fedstrata.diagnostics.panel import Panel
from fedstrata.diagnostics.updates import Drift, StepSize

_MEASURES: dict[str, type[Measure]] = {
    "drift": Drift,
    "step_size": StepSize,
    "conflict": Conflict,
    "feature_diversity": FeatureDiversity,
    "barrier": Barrier,
}

NONE, AUTO = "none", "auto"


def register(name: str, measure: type[Measure]) -> None:
    """Add a measure of your own.

    Raises:
        ConfigError: the name is taken.
    """
    if name in _MEASURES or name in (NONE, AUTO):
        raise ConfigError(f"a measure {name!r} is registered already; choose another name.")
    _MEASURES[name] = measure


def table() -> Mapping[str, type[Measure]]:
    """Measures by name."""
    return dict(_MEASURES)


def find(name: str) -> type[Measure]:
    """A measure by name, ours or of an installed package, which is imported then.

    Raises:
        ConfigError: there is none; a plug-in that cannot be used.
    """
    plugged = plugins.load("measures", name, (NONE, AUTO, *_MEASURES))
    if plugged is not None:
        plugin, offered = plugged
        if not (isinstance(offered, type) and issubclass(offered, Measure)):
            plugins.wanted(plugin, offered, "a subclass of fedstrata.diagnostics.base.Measure")
        return offered
    if name not in _MEASURES:
        names = [*_MEASURES, *plugins.installed("measures")]
        raise ConfigError(f"there is no measure {name!r}; `fedstrata list measures` prints them.{nearest(name, names)}")
    return _MEASURES[name]


def measures(text: str, brought: Sequence[str] = ()) -> dict[str, Measure]:
    """The measures that a setting means, by name.

    Args:
        text: call syntax, "drift + step_size"; "auto" is what pieces bring, "none" nothing at all.
        brought: names that the pieces of the method bring; they come first.
    Raises:
        ConfigError: an unknown measure or setting, or one measure twice.
    """
    if text == NONE:
        return {}
    found = {name: find(name)() for name in brought}
    for call in [] if text == AUTO else parse_calls(text):
        if call.name in found and call.name not in brought:
            raise ConfigError(f"measures names {call.name!r} twice; once is enough.")
        found[call.name] = bind(call, find(call.name), what="measures")
    return found


def panels(runs: Runs) -> list[Panel]:
    """The panels of all measures that runs have kept, by the measures' order of appearance.

    Args:
        runs: label of a method -> its runs -> rows of rounds.jsonl.
    """
    seen = dict.fromkeys(
        name for seeds in runs.values() for rows in seeds for row in rows for name in row.get("measures") or {}
    )
    return [panel for name in seen for panel in _known(name).panels(name, runs)]


def _known(name: str) -> Measure:
    """The measure, or, for numbers of one that is not installed here, its curves under its name."""
    return find(name)() if name in _MEASURES or name in plugins.installed("measures") else _Foreign(name)


class _Foreign(Measure):
    """Numbers of a measure that is not installed here."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "title", name)
        object.__setattr__(self, "text", f"Numbers of the measure {name!r}, which is not installed here.")

    def look(self, look: RoundSnapshot) -> Mapping[str, float | None]:
        """Nothing: its numbers were kept elsewhere."""
        return {}
