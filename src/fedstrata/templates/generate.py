"""Write a plug-in package: a method, data set or measure that already runs, its tests, and its entry point."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template

from fedstrata.common import plugins
from fedstrata.common.errors import ConfigError, StateError
from fedstrata.common.suggest import suggestion
from fedstrata.data.registry import datasets
from fedstrata.diagnostics.registry import MEASURES
from fedstrata.methods import rows as methods
from fedstrata.templates.texts import FILES, KINDS

_TAKEN: Mapping[str, Callable[[], set[str]]] = {
    "method": lambda: {"fedavg", *(row.name for row in methods()), *plugins.installed("methods")},
    "dataset": lambda: {*(row.name for row in datasets()), *plugins.installed("datasets")},
    "measure": lambda: {"none", "auto", *MEASURES.items(), *plugins.installed("measures")},
}


def new(kind: str, name: str, folder: str | Path = ".") -> Path:
    """Write a plug-in package.

    Args:
        kind: "method", "dataset" or "measure".
        name: of the class: letters and digits, FedMine or fedmine. Users, and the file's name, write it in lower case.
        folder: in which the package's folder is created.
    Returns:
        the new folder, with the package's name, with pyproject.toml, the file, its test and README.md.
    Raises:
        ConfigError: an unknown kind; an invalid name, or one that is taken.
        StateError: the folder exists.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"`fedstrata new` writes a {', '.join(KINDS)}; {kind!r} is none of them.{suggestion(kind, KINDS)}"
        )
    lower = _name(kind, name)
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ConfigError(f"the folder is {str(folder)!r}, which is a file; name a folder.")
    target = Path(folder) / lower
    if target.exists():
        raise StateError(f"{target} exists; nothing was written. Choose another name, or another folder by --folder.")
    values = {"name": lower, "Name": name[0].upper() + name[1:], "group": KINDS[kind]}
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{lower}-", dir=target.parent))
    try:
        for path, text in FILES[kind].items():
            (draft / Template(path).substitute(values)).write_text(Template(text).substitute(values), encoding="utf-8")
        draft.chmod(0o755)
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return target


def _name(kind: str, name: str) -> str:
    """Return the name in lower case, if it is valid."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,40}", name):
        raise ConfigError(
            f"{name[:60]!r} cannot be the name of a {kind}: it is a letter, then letters and digits, such as FedMine. A"
            " folder is --folder."
        )
    lower = name.lower()
    if keyword.iskeyword(lower) or keyword.issoftkeyword(lower) or lower in {"true", "false", "none", "null", "inf"}:
        raise ConfigError(
            f"{name!r} is a word of Python or of our call syntax and cannot name a {kind}; choose another, such as"
            f" fed{lower}."
        )
    if lower in _TAKEN[kind]():
        raise ConfigError(f"there is a {kind} {lower!r} already (`fedstrata list {KINDS[kind]}`); choose another name.")
    if lower in sys.stdlib_module_names or importlib.util.find_spec(lower) is not None:
        raise ConfigError(
            f"a Python module {lower!r} is installed, which a file {lower}.py would hide; choose another name, such as"
            f" fed{lower}."
        )
    return lower
