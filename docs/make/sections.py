"""Add the blank lines between sections of docstrings that the parser of mkdocstrings needs."""

from __future__ import annotations

import re
from typing import Any

import griffe

_HEAD = re.compile(r"\n(?:Class )?(args|attributes|raises|returns|yields):\n", re.IGNORECASE)
_EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)


class Sections(griffe.Extension):
    """Begin every section of a docstring after a blank line, and fence its examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            text = _HEAD.sub(lambda match: f"\n\n{match[1].capitalize()}:\n", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\1\n```", text)
