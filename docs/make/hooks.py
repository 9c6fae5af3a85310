"""Hooks of MkDocs: generated tables, and formulas as MathML, which browsers draw without a script.

A line ``<!-- make: NAME -->`` in a page is replaced by what ``tables.MAKE[NAME]`` writes.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

sys.path.insert(0, str(Path(__file__).parent))

from tables import MAKE

_MARK = re.compile(r"^<!-- make: (\w+) -->$", re.MULTILINE)
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):<code>~?([^<]*)</code>")


def on_config(config: Any) -> Any:
    """Add every page of docs/results to the contents."""
    pages = sorted(
        path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir, "results").glob("*.md")
    )
    if pages:
        config.nav.append({"Measured": pages})
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace marks by generated parts."""
    return _MARK.sub(lambda match: MAKE[match[1]](), markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML, and roles of docstrings into plain code."""
    return _ROLE.sub(r"<code>\1</code>", _FORMULA.sub(_mathml, content))


def _mathml(match: re.Match[str]) -> str:
    block = match[1] == "div"
    drawn = convert(html.unescape(match[2]).strip(), display="block" if block else "inline")
    return f'<div class="formula">{drawn}</div>' if block else drawn  # a wide formula scrolls in its box
