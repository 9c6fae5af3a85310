"""Suggest valid names for one that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, options: Iterable[str]) -> str:
    """Return the end of a message that names the nearest options, or "" where none is near.

    >>> suggestion("metod", ["method", "model"])
    " Did you mean 'method' or 'model'?"
    """
    hits = near(word, options)
    return f" Did you mean {' or '.join(map(repr, hits))}?" if hits else ""


def near(word: str, options: Iterable[str], n: int = 3) -> list[str]:
    """Return the ``n`` nearest options; case, hyphens and the level of a dotted name do not count.

    >>> near("weight-decay", ["local.weight_decay", "weighting"], n=1)
    ['local.weight_decay']
    """
    plain = _plain(word)
    scores = {option: _similarity(plain, _plain(option)) for option in options}
    ranked = sorted(scores, key=lambda option: (-scores[option], option))
    return [option for option in ranked[:n] if scores[option] >= 0.5]


def _plain(word: str) -> str:
    return word.strip().strip("-").lower().replace("-", "_")


def _similarity(word: str, option: str) -> float:
    """Return a number in [0, 1]: of the whole names, without separators, or of the last parts."""
    whole = _ratio(word, option)
    joined = _ratio(word.replace("_", "").replace(".", ""), option.replace("_", "").replace(".", ""))
    last = _ratio(word.rpartition(".")[2], option.rpartition(".")[2])
    return max(whole, joined, 0.98 * last)  # the same name on another level is nearly as good as the same name


def _ratio(word: str, option: str) -> float:
    return difflib.SequenceMatcher(None, word, option).ratio()
