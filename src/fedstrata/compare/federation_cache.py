"""Reuse loaded data: many runs of a comparison train on the same federation."""

from __future__ import annotations

from typing import Self

from pydantic import PrivateAttr

from fedstrata.common.errors import StateError
from fedstrata.config.config import Config
from fedstrata.data.federation import Federation

DATA = ("data", "data.root", "augment", "partition", "test", "validation", "heldout", "clients", "seed")
"""Settings that :meth:`fedstrata.Config.federation` looks at."""


class CachedConfig(Config):
    """Holds a configuration whose federation is loaded already."""

    _federation: Federation = PrivateAttr()

    @classmethod
    def of(cls, config: Config, federation: Federation) -> Self:
        """Combine settings with the federation that they describe."""
        result = cls(**config.flat())
        result._federation = federation
        return result

    def federation(self) -> Federation:
        """Return the loaded federation."""
        return self._federation


class FederationCache:
    """Keeps the federation that was loaded last."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._federation: Federation | None = None
        self.loads = 0

    def federation(self, config: Config) -> Federation:
        """Return the federation of a configuration; load it unless it is the last one."""
        flat = config.flat()
        key = tuple(flat[name] for name in DATA)
        if self._federation is None or key != self._key:
            self._federation = None  # before the next one is read: never two in memory
            self._federation, self._key = config.federation(), key
            self.loads += 1
        return self._federation

    def with_federation(self, config: Config, data: str) -> CachedConfig:
        """Return the configuration with its federation, which has the fingerprint ``data``.

        Raises:
            StateError: the data are others by now.
        """
        federation = self.federation(config)
        check_unchanged("data", data, federation.fingerprint)
        return CachedConfig.of(config, federation)


def check_unchanged(what: str, expected: str, actual: str) -> None:
    """Refuse data or code other than at the start of the comparison: the runs would not be comparable.

    Raises:
        StateError: it is another.
    """
    if expected != actual:
        raise StateError(
            f"the {what} changed while the comparison ran, so this run would not be comparable with the others; call it"
            " again."
        )
