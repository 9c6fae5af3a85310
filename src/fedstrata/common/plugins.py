"""Find plug-ins of other packages by their entry points; a :class:`~fedstrata.common.registry.Registry` uses them.

A package names what it offers in its ``pyproject.toml``:

    [project.entry-points."fedstrata.methods"]
    mymethod = "mypackage.mymethod:ROW"

Naming is the opt-in: installed packages are listed from their metadata, and one is imported only when a configuration
asks for its name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal, NoReturn, TypeAlias

from fedstrata.common.call_syntax import parse_calls
from fedstrata.common.errors import ConfigError, FedstrataError

Kind: TypeAlias = Literal[
    "methods",
    "datasets",
    "partitions",
    "models",
    "measures",
    "trackers",
    "tasks",
    "codecs",
    "executors",
    "schedules",
    "studies",
]

KINDS: Mapping[Kind, str] = {
    "methods": "method",
    "datasets": "data",
    "partitions": "partition",
    "models": "model",
    "measures": "measures",
    "trackers": "track",
    "tasks": "task",
    "codecs": "codec",
    "executors": "executor",
    "schedules": "schedule",
    "studies": "study",
}
"""What can be plugged in, and the setting that asks for it.

The group of entry points is ``fedstrata.`` and the kind.
"""


@dataclass(frozen=True)
class Plugin:
    """What a package offers, as its metadata say; nothing of it is imported.

    Attributes:
        kind: one of KINDS.
        name: what users write.
        package, version: where it comes from.
        about: the package's own summary.
        entry: the entry point.
    """

    kind: Kind
    name: str
    package: str
    version: str
    about: str
    entry: metadata.EntryPoint

    @property
    def origin(self) -> str:
        """For lists and messages: "package 1.0"."""
        return f"{self.package} {self.version}"


_found: dict[tuple[str, ...], dict[Kind, dict[str, list[Plugin]]]] = {}
_loaded: dict[tuple[Kind, str], tuple[Plugin, Any]] = {}


def installed(kind: Kind) -> Mapping[str, Plugin]:
    """The plug-ins of a kind by name, from the metadata of installed packages.

    Raises:
        ConfigError: two packages offer one name.
    """
    found = _scan().get(kind, {})
    for name, plugins in found.items():
        if len(plugins) > 1:
            origins = " and ".join(p.origin for p in plugins)
            raise ConfigError(
                f"{origins} both offer {KINDS[kind]} {name!r}, so the name has no one meaning; uninstall one of them."
            )
    return {name: plugins[0] for name, plugins in found.items()}


def _scan() -> dict[Kind, dict[str, list[Plugin]]]:
    place = tuple(sys.path)
    if place not in _found:
        kinds: dict[Kind, dict[str, list[Plugin]]] = {}
        everything = metadata.entry_points()  # once: it reads the metadata of every installed package
        for kind in KINDS:
            for entry in everything.select(group=f"fedstrata.{kind}"):
                plugin = _plugin(kind, entry)
                same = kinds.setdefault(kind, {}).setdefault(entry.name, [])
                if all(p.package != plugin.package for p in same):
                    same.append(plugin)
        _found[place] = kinds
    return _found[place]


def _plugin(kind: Kind, entry: metadata.EntryPoint) -> Plugin:
    dist = entry.dist
    about = str(dist.metadata["Summary"]) if dist is not None and "Summary" in dist.metadata else ""
    return Plugin(
        kind, entry.name, "?" if dist is None else dist.name, "?" if dist is None else dist.version, about, entry
    )


def refresh() -> None:
    """Look anew, after a package was installed in a running process."""
    _found.clear()


def load(kind: Kind, name: str, ours: Iterable[str]) -> tuple[Plugin, Any] | None:
    """Import what a package offers under a name.

    Args:
        kind: one of KINDS.
        name: as the user wrote it.
        ours: names of that kind that fedstrata has itself.
    Returns:
        the plug-in and its object; None where the name is ours, or unknown.
    Raises:
        ConfigError: a package offers a name that is ours, two packages offer it, or its import fails; the message names
            the package.
    """
    plugin = installed(kind).get(name)
    if plugin is None:
        return None
    if name in ours:
        refuse(
            plugin,
            f"fedstrata has a {KINDS[kind]} {name!r} itself. Rename the entry point there, or uninstall"
            f" {plugin.package}.",
        )
    if (kind, name) not in _loaded:
        try:
            _loaded[kind, name] = plugin, plugin.entry.load()
        except FedstrataError:
            raise
        except Exception as error:  # whatever a foreign module does when it is imported  # noqa: BLE001
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            refuse(
                plugin, f"importing {plugin.entry.value} fails with {reason}. Mend or update {plugin.package}.", error
            )
    return _loaded[kind, name]


def refuse(plugin: Plugin, reason: str, cause: BaseException | None = None) -> NoReturn:
    """A plug-in that cannot be used: an error that names its package."""
    raise ConfigError(f"{KINDS[plugin.kind]} {plugin.name!r} of the package {plugin.origin}: {reason}") from cause


def wanted(plugin: Plugin, offered: object, what: str) -> NoReturn:
    """Refuse an object of a wrong type."""
    refuse(plugin, f"{plugin.entry.value} is {described(offered)}; it must be {what}.")


def described(offered: object) -> str:
    """Say what an object is: a class by its name, any other by its type."""
    if isinstance(offered, type):
        return f"the class {offered.__name__}"
    return f"an object of type {type(offered).__name__}"


def versions(settings: Mapping[str, Any]) -> dict[str, str]:
    """Packages behind the plug-ins that a configuration names, with versions; for the manifest of a run.

    Args:
        settings: by public name, as ``Config.flat()``. Plug-ins count once they were loaded.
    """
    found: dict[str, str] = {}
    for kind, key in KINDS.items():
        text = settings.get(key)
        if not isinstance(text, str) or not any(k == kind for k, _ in _loaded):
            continue
        for call in parse_calls(text):
            if (kind, call.name) in _loaded:
                plugin = _loaded[kind, call.name][0]
                found[plugin.package] = plugin.version
    return dict(sorted(found.items()))
