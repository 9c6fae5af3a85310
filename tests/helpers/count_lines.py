"""Count the code lines of every built-in method: the class with its decorators, without docstrings, blank lines and
comments; imports and the registry row lie outside the class.

``python tests/helpers/count_lines.py [--root CHECKOUT]`` prints them; the sources are read, not imported, so that other
checkouts can be counted too.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHOWN = ("FedProx", "Scaffold", "FedPart")


def pieces(root: Path = ROOT) -> dict[str, int]:
    """Return the code lines of each public piece, by class name, over the files of ``methods/``."""
    counts = {}
    for path in sorted((root / "src" / "fedstrata" / "methods").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and _is_piece(node) and not node.name.startswith("_"):
                counts[node.name] = len(set(_code_lines(node, text.splitlines())))
    return counts


def _is_piece(node: ast.ClassDef) -> bool:
    """Say whether a class is a frozen dataclass with settings; named tuples and rows are none."""
    frozen = any(isinstance(d, ast.Call) and getattr(d.func, "id", "") == "dataclass" for d in node.decorator_list)
    return frozen and bool(node.bases) and not node.name.endswith("Row")


def _code_lines(node: ast.ClassDef, lines: list[str]) -> Iterator[int]:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    hidden = {number for inner in ast.walk(node) for number in _docstring(inner)}
    for number in range(first, (node.end_lineno or first) + 1):
        line = lines[number - 1].strip()
        if line and not line.startswith("#") and number not in hidden:
            yield number


def _docstring(node: ast.AST) -> range:
    body = getattr(node, "body", None)
    if not isinstance(node, ast.ClassDef | ast.FunctionDef) or not isinstance(body[0], ast.Expr):
        return range(0)
    text = body[0].value
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        return range(0)
    return range(text.lineno, (text.end_lineno or text.lineno) + 1)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Print the code lines of every built-in method.")
    options.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    counts = pieces(options.parse_args().root)
    for name, count in sorted(counts.items(), key=lambda item: item[1]):
        print(f"{count:4} {name}")
    print(f"{statistics.median(counts.values()):4} median of {len(counts)}")
    print(", ".join(f"{name} {counts[name]}" for name in SHOWN))
