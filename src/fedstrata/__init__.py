"""Federated learning on clients that differ."""

__version__ = "0.1.0"  # before the imports: run folders record it

from fedstrata.api import resume, run
from fedstrata.compose import Method, chain
from fedstrata.config import Config
from fedstrata.data.federation import Federation
from fedstrata.errors import ConfigError, DataError, FedstrataError, LayoutError, MethodError, StateError, WireError
from fedstrata.layout import Layout
from fedstrata.net import Dropout, Net
from fedstrata.params import Params
from fedstrata.piece import Piece, Reply, ServerView, View
from fedstrata.plan import Ask, Phase, Plan, Setup
from fedstrata.report.result import Result

__all__ = [
    "run",
    "resume",
    "Config",
    "Result",
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
    "FedstrataError",
    "ConfigError",
    "DataError",
    "LayoutError",
    "MethodError",
    "StateError",
    "WireError",
]
