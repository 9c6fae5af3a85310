"""Format text from users and numbers for a page.

User text is data: nothing in it is a command, and nothing in it breaks the file.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from fedstrata.analysis.records import Spread
from fedstrata.common.units import duration, number, size, work

NAME = 34  # letters of a method's name in pictures and tables
HOVER = 300  # letters of a whole name that a tip of the mouse shows

_STRAY = {"Cc", "Cs", "Co", "Cn"}  # control characters, halves of pairs, private and unassigned ones
_TURNING = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)  # direction of what follows them


def plain(text: object) -> str:
    """Return text that HTML and SVG may hold once escaped.

    Control characters become the replacement character, spaces of any kind one space.

    Marks that turn the direction of writing are taken out: they would reorder the letters of what follows, so that a
    name reads as another one.
    """
    kept = "".join(
        " " if c.isspace() else "\ufffd" if unicodedata.category(c) in _STRAY else c
        for c in str(text)
        if c not in _TURNING
    )
    return " ".join(kept.split())


def short(text: object, most: int = NAME) -> str:
    """Shorten to ``most`` letters by leaving the middle out: methods differ at both ends equally often."""
    whole = plain(text)
    if len(whole) <= most:
        return whole
    tail = (most - 1) // 3
    return f"{whole[: most - 1 - tail].rstrip()}…{whole[len(whole) - tail :].lstrip()}"


def names(labels: Sequence[str], most: int = NAME) -> tuple[str, ...]:
    """Return short names that still differ."""
    result: list[str] = []
    for label in labels:
        name = short(label, most) or "(no name)"
        candidate, number_ = name, 2
        while candidate in result:
            candidate, number_ = f"{name} ({number_})", number_ + 1
        result.append(candidate)
    return tuple(result)


def score(value: float | None, digits: int = 3) -> str:
    """Write an accuracy or an error."""
    return number(value, digits) if value is None or abs(value) < 1000 else f"{value:.4g}"


def signed(value: float | None, digits: int = 3) -> str:
    """Write a difference with its sign and a proper minus."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def spread(value: Spread | None, digits: int = 3) -> str:
    """Write a mean with its standard deviation, where there is one."""
    if value is None:
        return "-"
    return score(value.mean, digits) + (f" ± {score(value.std, digits)}" if value.std is not None else "")


def cost(kind: str, value: float | None) -> str:
    """Write an amount with its unit; ``kind`` is a key of costs."""
    if kind.startswith(("bytes", "framing")):
        return size(value)
    if kind == "flops":
        return work(value)
    if kind.endswith("seconds"):
        return duration(value)
    return "-" if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def loose(value: float | None) -> str:
    """Write a number of unknown size, with four significant digits."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def setting_text(value: Any) -> str:
    """Write a setting as in its file."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(item) for item in value) or "none"
    return plain(value)


def counted(count: int, one: str, many: str = "") -> str:
    """Write a count and its word: "1 client", "3 clients"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(parts: Sequence[str]) -> str:
    """Join words with commas, and "and" before the last."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
