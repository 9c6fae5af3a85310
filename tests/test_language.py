"""Plain language: the phrases below are banned in code, documents and help texts, and lines of Python end at 120."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest
import typer

from fedstrata.cli import app

ROOT = Path(__file__).parents[1]
WIDTH = 120
BETTER = {  # phrase: what to write instead
    r"h[au]ngs? on|hanging on": "depends on",
    r"be meant": "is invalid",
    r"in front of": "before, ahead of, preceding",
    r"go(?:es)? by|went by": "follows, is chosen by",
    r"c[oa]mes? to": "is, equals, costs",
    r"told": "given, sent, reported",
    r"stands?(?! for\b|-)|stood": "is, lies, applies",
    r"people": "clients, users",
    r"of (?:its|their|one's|your|our|my|his|her) own": "its, a separate, a custom",
    r"(?:has|have|had) (?:its|their|a) say": "applies, decides",
    r"the like": "similar",
    r"nobody": "no client, no one",
    r"bill(?:s|ed|ing)?": "cost, counted",
    r"mails?": "payload",
    r"in silence": "silently",
}
BANNED = {
    re.compile(rf"\b(?:{phrase})\b".replace(" ", r"[\s#]+"), re.IGNORECASE): better for phrase, better in BETTER.items()
}
SOURCES = sorted((ROOT / "src" / "fedstrata").rglob("*.py"))
PYTHON = [*SOURCES, *(path for name in ("tests", "bench", "docs") for path in sorted((ROOT / name).rglob("*.py")))]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "bench").glob("*.md"))]
PRAGMA = re.compile(r"  # (?:noqa|type: ignore)\b.*")
CODE = re.compile(r"^ *```.*?^ *```|<!--.*?-->|`[^`\n]+`|\]\([^)\n]*\)", re.DOTALL | re.MULTILINE)


def problems(name: str, texts: Iterable[tuple[int, str]]) -> list[str]:
    """A message for every banned phrase: file and line, the phrase, what to write instead."""
    return [
        f"{name}:{line + text.count(chr(10), 0, match.start())}: {' '.join(match[0].split())!r}: say {better}"
        for line, text in texts
        for banned, better in BANNED.items()
        for match in banned.finditer(text)
    ]


def prose_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and other string literals, each with its first line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:  # a word is a key
            yield node.lineno, node.value


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Everything outside of code, comments and addresses, in its lines."""
    yield 1, CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Every text that ``--help`` shows, with what it belongs to."""
    yield name, command.help or ""
    for param in command.params:
        yield f"{name} {param.name}", getattr(param, "help", "") or ""
    if isinstance(command, click.Group):
        for inner, sub in command.commands.items():
            yield from helps(sub, f"{name} {inner}")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_code_is_in_plain_language(path):
    assert not problems(named(path), prose_of_python(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_pages_are_in_plain_language(path):
    assert not problems(named(path), prose_of_markdown(path.read_text(encoding="utf-8")))


def test_help_is_in_plain_language():
    texts = list(helps(typer.main.get_command(app), "fedstrata"))
    assert len(texts) > 50
    assert not [message for name, text in texts for message in problems(name, [(1, text)])]


def test_lines_of_python_end_at_120_characters():
    long = [
        f"{named(path)}:{number}: {len(line)} characters"
        for path in PYTHON
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(PRAGMA.sub("", line)) > WIDTH
    ]
    assert not long


def test_a_banned_phrase_is_found_with_its_line_and_a_better_word():
    source = 'x = 1  # it hangs on y\n"""One.\n\nIt comes\nto two."""\n'
    assert problems("a.py", prose_of_python(source)) == [
        "a.py:1: 'hangs on': say depends on",
        "a.py:4: 'comes to': say is, equals, costs",
    ]
    page = "It `comes to` naught.\n\n```bash\ntold\n```\n\nWhat was told stands for much.\n"
    assert problems("a.md", prose_of_markdown(page)) == ["a.md:7: 'told': say given, sent, reported"]
