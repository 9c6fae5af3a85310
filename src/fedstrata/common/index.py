"""The index of everything built in: lists and citations, read without loading the registries (which load torch).

``python -m fedstrata.cli.build_index`` makes ``index.json`` from the registries; a test checks that it is up to date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).with_name("index.json")


class Cited(NamedTuple):
    """What the row of a registry says about publications.

    Attributes:
        cite: keys of ``fedstrata.citations``, or BibTeX entries.
        uncited: why there is nothing to cite.
    """

    cite: tuple[str, ...]
    uncited: str


@cache
def _read() -> Mapping[str, Any]:
    index: Mapping[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return index


def built_in(what: str) -> Sequence[Mapping[str, str]]:
    """Return the rows of ``fedstrata list WHAT``, without those of plug-ins."""
    rows: Sequence[Mapping[str, str]] = _read()["lists"][what]
    return rows


def cited(kind: str, name: str) -> Cited | None:
    """Return what to cite for a built-in method, data set, model or partition; None for any other name."""
    entry = _read()["citations"][kind].get(name)
    return None if entry is None else Cited(tuple(entry["cite"]), entry["uncited"])
