"""Count the public names that a method with state can meet: ``python tests/helpers/count_names.py [--root CHECKOUT]``.

They are the public fields, attributes and methods of the classes that a piece's file imports.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from pathlib import Path

CLASSES = (
    *("Piece", "ClientContext", "View", "ServerContext", "ServerView", "Tools", "Outcome", "Contribution", "Reply"),
    *("Plan", "Phase", "ClientQuery", "Ask", "QueryResult", "Answers", "CohortSlot", "Seat", "Setup", "LocalSettings"),
    *("State",),
)
"""Today's names and those of version 0.1."""


def names_of(tree: ast.Module, wanted: Sequence[str]) -> dict[str, list[str]]:
    """Return the public names of the classes with these names."""
    public: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in wanted:
            names = [n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
            names += [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
            public[node.name] = [n for n in dict.fromkeys(names) if not n.startswith("_")]
    return public


def count(root: Path) -> dict[str, list[str]]:
    """Return the names by class, of a checkout of this version or of version 0.1."""
    package = root / "src" / "fedstrata"
    files = [package / "core" / f"{n}.py" for n in ("piece", "plan", "state")]
    if not files[0].exists():
        files = [package / f"{n}.py" for n in ("piece", "plan", "states")]
    names: dict[str, list[str]] = {}
    for file in files:
        names |= names_of(ast.parse(file.read_text()), CLASSES)
    return names


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
    names = count(parser.parse_args().root)
    for label, mine in names.items():
        print(f"{label:15} {len(mine):4}  {', '.join(mine)}")
    print(
        f"{'all':15} {sum(map(len, names.values())):4},"
        f" {len({n for mine in names.values() for n in mine})} of them different"
    )
