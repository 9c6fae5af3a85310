"""Federated learning on clients that differ."""

__version__ = "0.1.0"
