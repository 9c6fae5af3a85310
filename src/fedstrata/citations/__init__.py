"""The bibliography of methods, models and data, one entry each.

Authors, titles, places and years were checked against the papers, their proceedings or the citations that their authors
give. An identifier that we could not confirm is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedstrata.citations.data import DATA
from fedstrata.citations.form import REQUIRED, Entry, key_of
from fedstrata.citations.methods import METHODS
from fedstrata.citations.models import MODELS
from fedstrata.common.errors import ConfigError
from fedstrata.common.suggest import suggestion

ENTRIES: Mapping[str, Entry] = {e.key: e for e in (*METHODS, *MODELS, *DATA)}
"""Every publication by key."""


def entry(key: str) -> Entry:
    """Look up a publication by key.

    Raises:
        ConfigError: there is none.
    """
    if key not in ENTRIES:
        raise ConfigError(
            f"the bibliography has no {key!r}.{suggestion(key, ENTRIES)} Write an entry that is not in it as BibTeX:"
            " '@article{...}'."
        )
    return ENTRIES[key]


__all__ = ["ENTRIES", "REQUIRED", "Entry", "entry", "key_of"]
