"""A page of documentation as a list of blocks, with the rules that its HTML comments state for the test.

    <!-- test page: rounds=2 executor=loop -->     every command of the page that trains gets these settings instead of
    its own <!-- test: rounds=5 -->                        the next block alone, over those of the page <!-- test: skip
    because it downloads -->       the next block is not run <!-- test: exits 2 -->                         the last
    command of the next block is refused with this exit code <!-- test: prepare                             Python that
    is run at this point, for what a reader would have brought along ... -->

Names that begin with two hyphens stand for options of a command (``--seeds=0,1``); ``report=none`` leaves out the HTML
page, the pictures and the table files of comparisons, which other pages make; ``-k=bit`` runs a part of a reader's own
tests. A block with a title, ```` ```toml title="mine.toml" ````, is a file of that name.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ("bash", "python", "toml")

_TOKEN = re.compile(
    r"^<!-- test(?P<page> page)?: (?P<rule>.*?) ?-->$"
    r"|^(?P<indent> *)```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<source>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    """One block: its language, its source, where it stands, and what the comment before it says."""

    language: str
    source: str
    line: int
    title: str = ""
    skip: str = ""
    exits: int = 0
    settings: dict[str, str] = field(default_factory=dict)


def pages() -> list[Path]:
    """Every document whose blocks are run."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """The blocks of a page that can be run, in order; preparations are Python blocks called "prepare"."""
    text = path.read_text(encoding="utf-8")
    shared: dict[str, str] = {}
    rule = ""
    found = []
    for token in _TOKEN.finditer(text):
        line = text.count("\n", 0, token.start()) + 1
        if token["rule"] is None:
            if token["language"] in RUN:
                found.append(_block(token, line, shared, rule))
            rule = ""
        elif token["page"]:
            shared = settings(token["rule"])
        elif token["rule"].startswith("prepare\n"):
            found.append(Block("prepare", token["rule"].removeprefix("prepare\n"), line + 1))
        else:
            assert not rule, f"{path.name}, line {line}: two rules for one block"
            rule = token["rule"]
    assert not rule, f"{path.name}: a rule without a block: {rule}"
    return found


def _block(token: re.Match[str], line: int, shared: dict[str, str], rule: str) -> Block:
    source = re.sub(rf"^{token['indent']}", "", token["source"], flags=re.MULTILINE)
    title = re.search(r'title="([^"]+)"', token["info"])
    made = Block(token["language"], source, line + 1, title[1] if title else "", settings=dict(shared))
    if rule.startswith("skip because "):
        made.skip = rule.removeprefix("skip because ")
    elif rule.startswith("exits "):
        made.exits = int(rule.removeprefix("exits "))
    elif rule:
        made.settings |= settings(rule)
    return made


def settings(rule: str) -> dict[str, str]:
    """``rounds=2 --seeds=0,1`` as a dictionary."""
    pairs = [word.partition("=") for word in rule.split()]
    assert all(equals for _, equals, _ in pairs), f"{rule!r} is no list of key=value"
    return {key: value for key, _, value in pairs}


def commands(source: str) -> list[str]:
    """The commands of a shell block: lines without comments, joined where they end in a backslash."""
    joined = re.sub(r"\\\n\s*", "", source)
    return [line for line in (_uncommented(line) for line in joined.splitlines()) if line]


def _uncommented(line: str) -> str:
    """What the shell would read: up to a # that begins a word outside of quotes."""
    quote = ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (place == 0 or line[place - 1].isspace()):
            return line[:place].strip()
    return line.strip()
