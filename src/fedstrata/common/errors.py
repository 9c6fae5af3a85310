"""Errors that teach: what was wrong, what was given, what would be right."""

from __future__ import annotations


class FedstrataError(ValueError):
    """Something a user can mend. The command prints it as one line and exits with code 2."""


class ConfigError(FedstrataError):
    """Invalid configuration: unknown key, wrong type, or conflicting settings."""


class DataError(FedstrataError):
    """Data that are missing, damaged or do not fit the model."""


class LayoutError(FedstrataError):
    """A selector or group that the model does not have."""


class MethodError(FedstrataError):
    """Pieces that cannot be chained, or a method that does not fit the model."""


class StateError(FedstrataError):
    """A run folder or checkpoint that is damaged or belongs to another run."""


class WireError(FedstrataError):
    """Bytes or a reply that must not touch the model."""
