"""Federated learning on clients that differ."""

__version__ = "0.1.0"  # before the imports: run folders record it

from fedstrata.api import resume, run
from fedstrata.compare import compare, sweep
from fedstrata.compose import Method, chain
from fedstrata.config import Config
from fedstrata.data.federation import Federation
from fedstrata.errors import ConfigError, DataError, FedstrataError, LayoutError, MethodError, StateError, WireError
from fedstrata.layout import Layout
from fedstrata.measure.look import Look, Measure
from fedstrata.measure.panel import Panel
from fedstrata.net import Dropout, Net
from fedstrata.params import Params
from fedstrata.piece import Piece, Reply, ServerView, View
from fedstrata.plan import Ask, Phase, Plan, Setup
from fedstrata.report.comparison import Budget, Comparison, Entry
from fedstrata.report.result import Result
from fedstrata.studies import Outcome, Study, study
from fedstrata.use import export, load, predict

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
    "Ask",
    "Reply",
    "Setup",
    "View",
    "ServerView",
    "Method",
    "chain",
    "Layout",
    "Params",
    "Net",
    "Dropout",
    "Measure",
    "Look",
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
