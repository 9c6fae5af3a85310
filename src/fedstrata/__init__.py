"""Federated learning on clients that differ.

Names are imported when they are first used (PEP 562), so that ``import fedstrata`` loads neither torch nor matplotlib.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedstrata._version import __version__ as __version__

if TYPE_CHECKING:
    from fedstrata.analysis.comparison import Budget, Entry
    from fedstrata.api import resume, run
    from fedstrata.common.errors import (
        ConfigError,
        DataError,
        FedstrataError,
        LayoutError,
        MethodError,
        StateError,
        WireError,
    )
    from fedstrata.compare.comparison import compare
    from fedstrata.compare.sweep import sweep
    from fedstrata.config.config import Config
    from fedstrata.core.chain import Method, chain
    from fedstrata.core.layout import Layout
    from fedstrata.core.network import Dropout, Net
    from fedstrata.core.params import Model, Params
    from fedstrata.core.piece import ClientContext, Piece, Reply, ServerContext, setting
    from fedstrata.core.plan import ClientQuery, Phase, Plan, Setup
    from fedstrata.core.state import State
    from fedstrata.data.federation import Federation
    from fedstrata.diagnostics.base import Measure, RoundSnapshot
    from fedstrata.diagnostics.panel import Panel
    from fedstrata.inference import export, load, predict
    from fedstrata.report.views import Comparison, Result
    from fedstrata.studies import Outcome, Study, study

_MODULES = {
    "analysis.comparison": ("Budget", "Entry"),
    "api": ("resume", "run"),
    "common.errors": (
        "ConfigError",
        "DataError",
        "FedstrataError",
        "LayoutError",
        "MethodError",
        "StateError",
        "WireError",
    ),
    "compare.comparison": ("compare",),
    "compare.sweep": ("sweep",),
    "config.config": ("Config",),
    "core.chain": ("Method", "chain"),
    "core.layout": ("Layout",),
    "core.network": ("Dropout", "Net"),
    "core.params": ("Model", "Params"),
    "core.piece": ("ClientContext", "Piece", "Reply", "ServerContext", "setting"),
    "core.plan": ("ClientQuery", "Phase", "Plan", "Setup"),
    "core.state": ("State",),
    "data.federation": ("Federation",),
    "diagnostics.base": ("Measure", "RoundSnapshot"),
    "diagnostics.panel": ("Panel",),
    "inference": ("export", "load", "predict"),
    "report.views": ("Comparison", "Result"),
    "studies": ("Outcome", "Study", "study"),
}
"""Public names by the module that defines them; a test holds that the imports above name the same."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedstrata' has no attribute {name!r}")
    value = getattr(import_module(f"fedstrata.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """The package; a public function keeps its name where a folder has the same one: ``compare``."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "run",
    "resume",
    "compare",
    "sweep",
    "load",
    "predict",
    "export",
    "study",
    "Config",
    "Result",
    "Comparison",
    "Entry",
    "Budget",
    "Federation",
    "Piece",
    "setting",
    "Plan",
    "Phase",
    "ClientQuery",
    "Reply",
    "Setup",
    "ClientContext",
    "ServerContext",
    "Method",
    "chain",
    "Layout",
    "Params",
    "Model",
    "State",
    "Net",
    "Dropout",
    "Measure",
    "RoundSnapshot",
    "Panel",
    "Study",
    "Outcome",
    "FedstrataError",
    "ConfigError",
    "DataError",
    "LayoutError",
    "MethodError",
    "StateError",
    "WireError",
]
