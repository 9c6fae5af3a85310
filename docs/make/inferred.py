"""Make docs/inferred.md: every default that no source states, from the sentences in the code with INFERRED.

Run it after such a sentence was added, moved or removed: ``python docs/make/inferred.py``. A test compares the
page.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE, PAGE = ROOT / "src", ROOT / "docs" / "inferred.md"
WORD = "INFERRED"

HEAD = """# Inferred defaults

A default that a paper states is the paper's. If neither a paper nor its authors' code states one, a choice is needed,
and the choice can decide a comparison. This page lists every such choice. Set these values yourself, or
[search for them on validation data](choose.md#tune-before-you-judge), before you call a method weak.

`python docs/make/inferred.py` makes the table from the code: each line is a sentence of the code with "INFERRED".
A test fails if the page and the code disagree.
"""

TAIL = """
The settings of a run (`rounds`, `local.lr`, `local.batch` and so on) are not in the table: they belong to no method,
and no value of them is right for all data. [Settings](config.md) lists them with their defaults.
"""

_SENTENCE = re.compile(r"(?<!Alg)(?<!sec)(?<!eq)(?<!al)(?<!e\.g)\.\s+(?=[\w`\"(])")
_SETTING = re.compile(rf"`{{0,2}}([A-Za-z_]\w*)`{{0,2}}(?:\s+=?\s*[\w.'-]+)?\s+(?:is|are)\s+{WORD}")


@dataclass(frozen=True)
class Row:
    """One inferred value.

    Attributes:
        name: what users write (ditto), or where the sentence is (fedstrata.bench.jobs).
        setting: the setting, or "" for a part of a rule that is no setting.
        default: its value, as text.
        sentence: as the code has it.
    """

    name: str
    setting: str
    default: str
    sentence: str


def rows() -> list[Row]:
    """Return every inferred value of the package, in the order of files and lines."""
    found = [
        row
        for path in sorted((SOURCE / "fedstrata").rglob("*.py"))
        for row in (*_docstrings(path), *_texts(path), *_comments(path))
    ]
    return list(dict.fromkeys(found))


def sentences(text: str) -> list[str]:
    """Return the sentences with INFERRED, on one line each."""
    flat = [re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", text)]
    return [s.strip().rstrip(".") + "." for part in flat for s in _SENTENCE.split(part) if WORD in s]


def _docstrings(path: Path) -> Iterator[Row]:
    module = _module(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and (text := ast.get_docstring(node))
            and WORD in text
        ):
            name = getattr(node, "name", "")
            for sentence in sentences(text):
                yield from _rows(module, name, sentence)


def _rows(module: str, name: str, sentence: str) -> Iterator[Row]:
    defaults = _defaults(module, name)
    shown = name.lower() if defaults else f"{module}.{name}".rstrip(".")
    settings = [s for s in _SETTING.findall(sentence) if s in defaults]
    for setting in settings or [""]:
        yield Row(shown, setting, defaults.get(setting, ""), sentence)


def _defaults(module: str, name: str) -> dict[str, str]:
    """Setting -> default of a dataclass, inherited ones too; empty for anything else."""
    thing = getattr(importlib.import_module(module), name, None) if name else None
    if not (isinstance(thing, type) and is_dataclass(thing)):
        return {}
    return {f.name: str(f.default) for f in fields(thing) if f.default is not MISSING}


def _texts(path: Path) -> Iterator[Row]:
    """Meanings of settings, written as ``name: type = Field(default=..., description="... INFERRED ...")``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (
            isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call) and isinstance(node.target, ast.Name)
        ):
            continue
        given = {k.arg: k.value.value for k in node.value.keywords if isinstance(k.value, ast.Constant)}
        if WORD in str(given.get("description", "")):
            yield Row(_module(path), node.target.id, str(given.get("default", "")), str(given["description"]))


def _comments(path: Path) -> Iterator[Row]:
    """Comments behind a value: ``NAME = value  # INFERRED: why``."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT and WORD in token.string:
            found = re.match(r"\s*(\w+)(?::[^=]+)?\s*=\s*(.+?)\s*#", token.line)
            yield Row(
                _module(path), found[1] if found else "", found[2] if found else "", token.string.lstrip("# ").strip()
            )


def _module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def page() -> str:
    """The page."""
    lines = ["| where | setting | default | what the code says |", "|---|---|---|---|"]
    for row in rows():
        setting = f"`{row.setting}`" if row.setting else "a part of the rule"
        default = f"`{row.default}`" if row.default else ""
        lines.append(f"| `{row.name}` | {setting} | {default} | {_plain(row)} |")
    return "\n".join([HEAD, *lines, TAIL])


def _plain(row: Row) -> str:
    """The sentence for a cell: no bar ends it, and stars and underscores mean themselves."""
    text = row.sentence.replace("``", "`").replace(WORD, "inferred")
    return re.sub(r"[|]", "&#124;", re.sub(r"[*_](?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\g<0>", text))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(rows())} values", file=sys.stderr)
