"""Configuration files: TOML in, with inheritance from files beside it, and TOML out."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedstrata.common.errors import ConfigError
from fedstrata.common.suggest import suggestion
from fedstrata.config.fields import flatten

BASE = "base"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """A file and the files that it builds on, the farthest first: (source for messages, dotted name -> value).

    ``base = "other"`` names ``other.toml`` in the same folder; what this file says holds over what its base says.

    Raises:
        ConfigError: a file that is missing or is not TOML, a base outside the folder, a circle of bases.
    """
    chain: list[tuple[str, dict[str, Any]]] = []
    seen: list[Path] = []
    following: Path | None = path
    while following is not None:
        if following.resolve() in seen:
            names = " -> ".join(p.name for p in (*seen, following))
            raise ConfigError(f"{path}: the bases go round in a circle ({names}); one of them must have no base.")
        seen.append(following.resolve())
        settings = flatten(_load(following))
        base = settings.pop(BASE, None)
        chain.insert(0, (following.name, settings))
        following = None if base is None else _base(following, base)
    return chain


def _base(path: Path, base: object) -> Path:
    if not isinstance(base, str) or not _NAME.fullmatch(base):
        raise ConfigError(
            f"{path.name}: base is {base!r}; it is the name of a file in the same folder, for example base ="
            f' "{path.stem}_base".'
        )
    return path.with_name(base.removesuffix(".toml") + ".toml")


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        there = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        raise ConfigError(
            f"there is no configuration file {str(path)!r}.{suggestion(path.name, there)} Settings are written"
            " key=value."
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {str(path)!r}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file in UTF-8 (byte {error.start}).") from error
    except tomllib.TOMLDecodeError as error:
        quoted = (
            ' A name that begins like another setting is quoted: "data.root" = "...".'
            if re.search(r"^\s*data\s*\.\s*root\s*=", _text(path), re.MULTILINE)
            else ""
        )
        raise ConfigError(f"{path} is not TOML: {str(error).rstrip('.')}.{quoted}") from error


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def write(settings: Iterable[tuple[tuple[str, ...], Any]]) -> str:
    """TOML text of (names, value) pairs; a pair of two names goes into a table, and tables come last."""
    top: list[str] = []
    tables: dict[str, list[str]] = {}
    for names, value in settings:
        line = f"{_key(names[-1])} = {_value(value)}"
        (tables.setdefault(names[0], []) if len(names) > 1 else top).append(line)
    blocks = ["\n".join(top), *(f"[{_key(name)}]\n" + "\n".join(lines) for name, lines in tables.items())]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    assert isinstance(value, Mapping) is False
    return "[" + ", ".join(_value(item) for item in value) + "]"
