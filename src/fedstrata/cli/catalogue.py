"""What is registered, as rows of text for ``fedstrata list``.

Rows of built-in entries come from ``common/index.json``; ``cli/build_index.py`` makes it from the registries. Rows of
plug-ins come from the metadata of installed packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fedstrata.common import index, plugins

Rows: TypeAlias = Sequence[Mapping[str, str]]

COLUMNS: Mapping[plugins.Kind, tuple[str, ...]] = {
    "methods": ("method", "what it does", "source"),
    "datasets": ("data", "what it is", "needs", "source"),
    "models": ("model", "what it is", "norm", "source"),
    "partitions": ("partition", "how samples are dealt", "source"),
    "measures": ("measure", "where", "what it says"),
    "studies": ("study", "runs", "settings", "what it says"),
    "trackers": ("tracker", "where curves go", "source"),
    "executors": ("executor", "who trains"),
}
"""Names of the columns of each list; the first is the name of an entry."""


def rows(what: str) -> Rows:
    """Return the rows of one list, one of COLUMNS: built-in entries, then plug-ins; no package is imported."""
    kind = next(kind for kind in COLUMNS if kind == what)
    return [*index.built_in(what), *(_plugin_row(kind, plugin) for plugin in plugins.installed(kind).values())]


def _plugin_row(kind: plugins.Kind, plugin: plugins.Plugin) -> Mapping[str, str]:
    name, *others = COLUMNS[kind]
    known = {
        "source": f"plug-in: {plugin.origin}",
        "where": f"measures={plugin.name} ({plugin.origin})",
        "needs": "?",
        "norm": "?",
        "runs": "?",
        "settings": "?",
    }
    return {name: plugin.name} | {column: known.get(column, plugin.about) for column in others}
