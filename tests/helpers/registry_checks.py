"""What only this repository asks of its registry; the laws over methods are ``fedstrata.testing.laws``."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import fedstrata.methods as shelf
from fedstrata.core.piece import Piece
from fedstrata.methods import Limit, NoLimit, Row

TESTS = Path(__file__).parents[1]


def written_pieces() -> list[type[Piece]]:
    """Every public piece that a file of the methods folder defines."""
    found = []
    for info in pkgutil.iter_modules(shelf.__path__):
        module = importlib.import_module(f"{shelf.__name__}.{info.name}")
        mine = (
            v
            for v in vars(module).values()
            if isinstance(v, type) and issubclass(v, Piece) and v.__module__ == module.__name__
        )
        found += [piece for piece in mine if not piece.__name__.startswith("_")]
    return found


def complaints(rows: Sequence[Row], pieces: Iterable[type[Piece]], tests: Path = TESTS) -> list[str]:
    """What the registry lacks, one sentence each."""
    known = {row.piece for row in rows}
    found = [f"{piece.__name__} is written but not registered" for piece in pieces if piece not in known]
    for row in rows:
        if not row.examples:
            found.append(f"{row.name} has no example")
        if not any(row.name in example for example in row.examples):
            found.append(f"{row.name}: no example shows it")
        if isinstance(row.limit, NoLimit):
            found += [f"{row.name}: {lack}" for lack in _reference(row.limit, tests)]
        elif not isinstance(row.limit, Limit):
            found.append(f"{row.name} has neither a limit nor a reason for having none")
    return found


def _reference(limit: NoLimit, tests: Path) -> list[str]:
    if len(limit.why.split()) < 3:
        return [f"the reason {limit.why!r} says nothing"]
    file, _, name = limit.reference.partition("::")
    if not (tests / file).is_file():
        return [f"the reference file {file} does not exist"]
    tree = ast.parse((tests / file).read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [] if name in names else [f"{file} has no test {name}"]
