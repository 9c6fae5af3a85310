"""Refuse run folders of other versions: their settings and files have other names."""

from __future__ import annotations

import json
from pathlib import Path

from fedstrata._version import __version__
from fedstrata.common.errors import StateError

MANIFEST = "manifest.json"


def check_version(folder: Path) -> None:
    """Refuse a run folder that another version of fedstrata made; a folder without a readable manifest passes.

    Raises:
        StateError: with the two versions and what to do.
    """
    try:
        made_by = str(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["fedstrata"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # whoever reads the manifest says what is wrong with it
    if made_by.split(".")[:2] != __version__.split(".")[:2]:
        raise StateError(
            f"{folder} was made by fedstrata {made_by}, and {__version__} does not read it: settings and files have"
            f" other names now. Run it again, or install fedstrata=={made_by}."
        )
