"""Every registered method, one row each, found in the files of this folder.

A file holds its row as ``ROW``, or ``ROWS`` where it has several; no list of names is kept. A row without examples,
limit (or reason and reference test) fails the laws.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import get_args

from fedstrata.common import plugins
from fedstrata.common.errors import ConfigError
from fedstrata.common.registry import Registry
from fedstrata.core import chain
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece
from fedstrata.methods.parts.rows import Family, NoLimit, Row


def _built_in() -> Iterator[Row]:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.ispkg and module.name != "registry":
            yield from _rows_of(module.name)


def _rows_of(name: str) -> tuple[Row, ...]:
    """Return the rows of one file.

    Raises:
        ConfigError: the file cannot be imported, or has no row; one line names it.
    """
    try:
        methods = import_module(f"fedstrata.methods.{name}")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise ConfigError(f"methods/{name}.py cannot be imported ({reason}). Mend it, or move it elsewhere.") from error
    if not hasattr(methods, "ROW") and not hasattr(methods, "ROWS"):
        raise ConfigError(f"methods/{name}.py has no ROW; a file of this folder registers a method.")
    return (methods.ROW,) if hasattr(methods, "ROW") else tuple(methods.ROWS)


def _is_row(offered: object) -> bool:
    return isinstance(offered, Row) and isinstance(offered.piece, type) and issubclass(offered.piece, Piece)


def _adapt(plugin: plugins.Plugin, offered: object) -> object:
    """Return a plug-in's row; a bare piece gets one without examples and law."""
    if isinstance(offered, type) and issubclass(offered, Piece):
        offered = Row(offered, plugin.about, (plugin.name,), NoLimit("its package gives the class alone", ""))
    if isinstance(offered, Row) and _is_row(offered):
        if "__dataclass_fields__" not in vars(offered.piece):
            plugins.refuse(
                plugin,
                f"{offered.piece.__name__} is no dataclass of settings; write @dataclass(frozen=True) above the class.",
            )
        if offered.name != plugin.name:
            plugins.refuse(
                plugin, f"its class is {offered.piece.__name__}, so the entry point must be called {offered.name!r}."
            )
    return offered


METHODS: Registry[Row] = Registry(
    "methods",
    "method",
    accepts=_is_row,
    wanted="a fedstrata.methods.Row, or a subclass of fedstrata.Piece",
    entries={
        row.name: row for row in sorted(_built_in(), key=lambda row: (get_args(Family).index(row.family), row.name))
    },
    adapt=_adapt,
    reserved=("fedavg",),
)


def rows() -> tuple[Row, ...]:
    """Return all registered methods, by family and name; those of packages are in ``fedstrata.common.plugins``."""
    return tuple(METHODS.items().values())


def table() -> Mapping[str, type[Piece]]:
    """Return the pieces by name."""
    return {row.name: row.piece for row in rows()}


def register(row: Row) -> None:
    """Add a method.

    Raises:
        ConfigError: the name is taken.
    """
    METHODS.register(row.name, row)


def find(name: str) -> Row:
    """Return the row of a method, ours or of an installed package, which is imported then.

    Raises:
        ConfigError: an unknown name, with the nearest ones; a plug-in that cannot be used.
    """
    return METHODS.find(name)


def row_of(piece: Piece) -> Row | None:
    """Return the row of a piece, or None for one that is not registered."""
    row = find(piece.name) if piece.name in METHODS else None
    return row if row is not None and row.piece is type(piece) else None


def source_of(piece: Piece) -> str:
    """Return the publication of a piece, or "" for one that is not registered."""
    row = row_of(piece)
    return "" if row is None else row.source


def measures_of(method: Method) -> list[str]:
    """Return the measures that show what the pieces of a method do."""
    return [name for piece in method.pieces if (row := row_of(piece)) is not None for name in row.measures]


def method(text: str) -> Method:
    """Return a method from call syntax; see :func:`fedstrata.core.chain.parse`.

    Packages are imported for the names that they offer.
    """
    return chain.parse(text, lambda name: find(name).piece)
