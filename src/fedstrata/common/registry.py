"""One registry for everything that has a name: built in, registered from Python, or offered by an installed package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar, cast

from fedstrata.common import index, plugins
from fedstrata.common.errors import ConfigError
from fedstrata.common.suggest import suggestion

T = TypeVar("T")
_REGISTERED: dict[plugins.Kind, list[str]] = {}


class Registry(Generic[T]):
    """Entries of one kind by name, in the order of registration.

    Plug-ins are listed from the metadata of installed packages; a package is imported when its name is asked for.

    Args:
        kind: one of ``plugins.KINDS``; packages offer entries by the entry point ``fedstrata.KIND``.
        noun: for messages: "method", "data set".
        accepts: whether an object may be an entry.
        wanted: what ``accepts`` takes, for messages: "a subclass of fedstrata.diagnostics.base.Measure".
        entries: the built-in ones.
        adapt: makes an entry of what a plug-in offers, for example a row of a bare class; it may refuse it.
        reserved: names that mean something else and cannot be registered, for example "none".
    """

    def __init__(
        self,
        kind: plugins.Kind,
        noun: str,
        *,
        accepts: Callable[[object], bool],
        wanted: str,
        entries: Mapping[str, T] | None = None,
        adapt: Callable[[plugins.Plugin, object], object] | None = None,
        reserved: Iterable[str] = (),
    ) -> None:
        self.kind, self.noun, self.wanted, self.reserved = kind, noun, wanted, tuple(reserved)
        self._accepts, self._adapt = accepts, adapt
        self._entries: dict[str, T] = dict(entries or {})

    def register(self, name: str, entry: T) -> T:
        """Add an entry.

        Raises:
            ConfigError: the name is taken or cannot be written in call syntax, or the entry has a wrong type.
        """
        if not name.isidentifier():
            raise ConfigError(f"the name of a {self.noun} is a Python name such as my_{self.kind}; {name!r} is not.")
        if name in self._entries or name in self.reserved:
            raise ConfigError(f"a {self.noun} {name!r} is registered already; choose another name.")
        if not self._accepts(entry):
            raise ConfigError(f"{self.noun} {name!r} is {plugins.described(entry)}; it must be {self.wanted}.")
        self._entries[name] = entry
        _REGISTERED.setdefault(self.kind, []).append(name)
        return entry

    def unregister(self, name: str) -> None:
        """Remove an entry."""
        del self._entries[name]
        _REGISTERED[self.kind].remove(name)

    def find(self, name: str) -> T:
        """Return an entry, built in, registered, or of an installed package, which is imported then.

        Raises:
            ConfigError: an unknown name, with the nearest ones; or a plug-in that cannot be used.
        """
        loaded = plugins.load(self.kind, name, (*self.reserved, *self._entries))
        if loaded is not None:
            return self._plugin_entry(*loaded)
        if name not in self._entries:
            names = self.names()
            raise ConfigError(
                f"there is no {self.noun} {name!r}.{suggestion(name, names)} Known are {', '.join(names)}."
            )
        return self._entries[name]

    def _plugin_entry(self, plugin: plugins.Plugin, offered: object) -> T:
        entry = offered if self._adapt is None else self._adapt(plugin, offered)
        if not self._accepts(entry):
            plugins.wanted(plugin, offered, self.wanted)
        return cast("T", entry)

    def names(self) -> tuple[str, ...]:
        """Return every name that users may write: reserved, registered, and of installed packages."""
        return (*self.reserved, *self._entries, *self.plugins())

    def items(self) -> Mapping[str, T]:
        """Return the built-in and registered entries by name."""
        return MappingProxyType(self._entries)

    def plugins(self) -> Mapping[str, plugins.Plugin]:
        """Return what installed packages offer, by name; no package is imported."""
        return plugins.installed(self.kind)

    def origin(self, name: str) -> str:
        """Return the package and version of a plug-in, or "" for any other entry."""
        return self.plugins()[name].origin if name in self.plugins() else ""

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.plugins()


def known_names(kind: plugins.Kind) -> tuple[str, ...]:
    """Return every name of a kind that ``fedstrata list`` shows, and those registered from Python.

    The registry itself, which may load torch, is not imported.
    """
    listed = (next(iter(row.values())) for row in index.built_in(kind))
    return (*listed, *_REGISTERED.get(kind, ()), *plugins.installed(kind))
