"""Federated learning on clients that differ."""

__version__ = "0.1.0"  # before the imports: run folders record it

from fedstrata.analysis.comparison import Budget, Comparison, Entry
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
from fedstrata.compare import compare, sweep
from fedstrata.config.config import Config
from fedstrata.core.chain import Method, chain
from fedstrata.core.layout import Layout
from fedstrata.core.network import Dropout, Net
from fedstrata.core.params import Params
from fedstrata.core.piece import ClientContext, Piece, Reply, ServerContext
from fedstrata.core.plan import ClientQuery, Phase, Plan, Setup
from fedstrata.data.federation import Federation
from fedstrata.diagnostics.base import Measure, RoundSnapshot
from fedstrata.diagnostics.panel import Panel
from fedstrata.inference import export, load, predict
from fedstrata.runs.result import Result
from fedstrata.studies import Outcome, Study, study

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
